"""Workers, which run in a peer's own environment: `python -m bench.peers.workers.NAME`.

Only ringkv.py imports ringkv.

A worker reads one JSON object per line from its input and replies to each with one; `serve` defines the commands.
"""
