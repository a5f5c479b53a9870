"""The endpoints: a file for each, with its formatter and the schema of its responses.

Others import any module of it.
"""
