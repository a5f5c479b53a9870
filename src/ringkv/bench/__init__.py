"""`ringkv bench` and `ringkv profile`: full attention beside a compressed cache, and where the time of a step goes.

Others import `compare`, `pair`, `profile` and `round`.
"""
