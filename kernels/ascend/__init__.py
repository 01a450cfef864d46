"""Kernels for Ascend NPUs: those Triton kernels that need nothing of NVIDIA's. Not run on hardware."""
