"""LIBERO batched by MuJoCo Warp."""
__version__ = "0.1.0"
