"""`ringkv rotate`: checkpoints whose weights are rotated and quantised.

Others import `choice` and `run`.
"""
