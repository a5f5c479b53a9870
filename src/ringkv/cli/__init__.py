"""The commands: their options, and what they print.

Others import `main`.
"""
