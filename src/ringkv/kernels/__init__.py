"""Operators: torch references, C++ for CPUs, Triton for GPUs.

Others import any module of it.
"""
