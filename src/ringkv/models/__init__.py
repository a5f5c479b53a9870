"""Models: weights to logits.

Others import any module of it.
"""
