"""Messages between our processes: their bytes, and the sockets that carry them.

Others import `codec`, `link` and `outbox`.
"""
