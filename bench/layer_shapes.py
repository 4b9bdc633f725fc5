"""The shapes of MoE layers that benches have in common."""
SHAPES = {  # T, d, n, E, K
    "S7-256": (24576, 1536, 256, 128, 8),
    "S30-512": (32768, 4096, 512, 128, 8),
    "S120-1024": (32768, 4096, 1024, 128, 8),
    "Qwen3-30B": (32768, 2048, 768, 128, 8),
    "OLMoE": (32768, 2048, 1024, 64, 8),
    "Mixtral": (8192, 4096, 14336, 8, 2),
}
TINY = {"tiny": (64, 32, 16, 4, 2)}  # a CPU does it at once
