"""`ringkv bench`: full attention beside a compressed cache.

Others import `compare`, `pair` and `round`.
"""
