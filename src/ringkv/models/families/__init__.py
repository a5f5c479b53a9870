"""A file for each family: it reads the family's configuration and builds its layers.

Others import `registry`.
"""
