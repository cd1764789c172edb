"""Triton kernels of the canary ops, one source for CUDA and ROCm; see kvcanary.kernels.triton_gpu for the backend.

Triton types nothing statically, so these modules are plain functions on blocks of values. An index outside its tensor is never
dereferenced: it reads as zero, and a store to it is dropped.
"""
