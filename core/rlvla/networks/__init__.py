"""Parts that vision-language-action networks share: stacked linear layers with LoRA adapters, compiled element-wise kernels,
CUDA graphs, pictures on the GPU. Model plugins use them; the core itself does not. ``adapters`` needs peft.
"""
