"""The engine in a process of its own, its restarts, and a client for it.

Others import `channel`, `client`, `codec`, `engines`, `process` and `supervisor`.
"""
