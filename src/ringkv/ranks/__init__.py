"""Several processes behind one engine.

Others import `build` and `node`.
"""
