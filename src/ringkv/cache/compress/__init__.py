"""Which entries of a prompt a slot keeps: selectors, their scores and votes.

Others import any module of it.
"""
