"""Settings of other trainers that are no script of Megatron-LM's, as a recipe.

    python3 -m troupe_foreign.recipe FILE -o run.yaml

A file is read into flags of Megatron-LM, which `troupe convert recipe` makes a recipe of; what it says of each flag is printed under
the names that FILE has. Nothing of FILE is run: YAML is data, Python is read by `ast`, and a script's words come from
`troupe convert words`. PyTorch is not imported."""
