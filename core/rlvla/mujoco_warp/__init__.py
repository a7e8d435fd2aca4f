"""MuJoCo Warp for batched simulators: N worlds of one model on a GPU, programs captured as CUDA graphs, pictures as tensors.

Simulator plugins use it, the core itself does not. It knows no task. Its modules need mujoco-warp and torch; this one
imports nothing.
"""
