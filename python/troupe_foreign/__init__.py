"""Reads checkpoints of PyTorch's DCP, Megatron-LM and MegaBlocks' fork of it, and writes safetensors.

    python3 -m troupe_foreign SOURCE OUTPUT --config config.json

A checkpoint's tensors are a dictionary of name -> Tensor, and nothing of them is read before it is asked for. What is a
pickle there is opened so that no code of its own runs: a class that is not plain data becomes an inert StandIn."""
