"""The vocabulary of all rooms: requests, events, errors, cache specs, choices, and what an engine is.

Others import any module of it.
"""
