"""Scores of an answer, from 0 to 1.

Others import any module of it.
"""
