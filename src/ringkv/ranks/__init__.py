"""Several processes behind one engine.

Others import `build`, `node` and `packets`.
"""
