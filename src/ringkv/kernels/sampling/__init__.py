"""The operators of sampling: penalties, masks and sampled tokens.

Others import any module of it.
"""
