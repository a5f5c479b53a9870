"""Tokens from logits: the parameters of all slots, and the graphs that sample.

Others import any module of it.
"""
