"""The operators in Triton.

Others import any module of it.
"""
