"""Batch-invariant kernels: a row's bits depend on that row alone.

One operation a file, with a plain PyTorch reference beside it. Every file imports without a GPU
and without Triton; calling a kernel then raises :class:`nondet_kernels.support.KernelUnavailable`.
"""
