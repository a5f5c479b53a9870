"""Functions that are built once and replayed: ahead of time on a CPU, as CUDA graphs on a GPU.

Others import any module of it.
"""
