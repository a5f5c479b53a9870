"""Messages between our processes: their bytes, the sockets that carry them, and the proof of a shared secret.

Others import `handshake`, `link` and `outbox`.
"""
