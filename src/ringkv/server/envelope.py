"""Envelope: the fields that all chunks of a streamed answer have, encoded once."""

from collections.abc import Mapping
from typing import Any

from ringkv.server.stream import START, STOP, one_line

JSON = Mapping[str, Any]


class Envelope:
    """fields: those before `choices`."""

    def __init__(self, fields: JSON) -> None:
        self._head = START + one_line(fields).removesuffix(b"}") + b',"choices":['

    def event(self, choice: JSON | None, rest: JSON) -> bytes:
        """Return the event of a chunk with one choice, or none, and the fields after `choices`."""
        encoded = b"" if choice is None else one_line(choice)
        return self._head + encoded + (b"]," + one_line(rest)[1:] if rest else b"]}") + STOP
