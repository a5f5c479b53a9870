"""The operators of sampling: penalties, masks and draws.

Others import any module of it.
"""
