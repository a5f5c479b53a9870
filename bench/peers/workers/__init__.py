"""What runs inside a peer's own environment: `python -m bench.peers.workers.NAME`.

Nothing here imports ringkv, except ringkv.py.

A worker reads one JSON object a line from its input and answers each with one; `serve` has the words.
"""
