"""A file for each command.

Others import any module of it.
"""
