"""Triton kernels for NVIDIA devices; profile strict gives the bits of ``kernels/cpu``."""
