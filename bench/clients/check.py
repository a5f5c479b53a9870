"""Check: the result of one client check against the server."""

from typing import NamedTuple


class Check(NamedTuple):
    client: str
    what: str
    ok: bool
    detail: str  # a figure, or the reason of a failure; column "said" of the table of results
