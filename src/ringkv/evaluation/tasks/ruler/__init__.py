"""RULER's tasks.

Others import `needles` and `suite`.
"""
