"""Kernels that custom calls carry as MLIR (Pallas and libtpu's Mosaic, Triton), computed with numpy, block by block."""
