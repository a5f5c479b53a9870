"""The engine in a process of its own, its restarts, and a client for it.

Others import `client`, `process` and `supervisor`.
"""
