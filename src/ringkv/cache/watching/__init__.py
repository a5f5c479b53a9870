"""Slots that watch their entries while decoding, and evict by what was attended to.

Others import any module of it.
"""
