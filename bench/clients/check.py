"""Check: one thing that a client did against the server, and how it went."""

from typing import NamedTuple


class Check(NamedTuple):
    client: str
    what: str
    ok: bool
    said: str  # a figure, or why it failed
