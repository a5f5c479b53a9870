"""Entries that outlive their request: prefixes and conversations.

Others import any module of it.
"""
