"""Link: messages between the first rank and another, over a pipe, or between machines over a socket."""

from multiprocessing.connection import Connection
from typing import Any, get_args

from ringkv.ranks.messages import RankMessage
from ringkv.wire.codec import Codec

CODEC = Codec(*get_args(RankMessage))


class LinkClosed(Exception):
    """The other end is closed."""


class Link:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, message: RankMessage) -> None:
        self.send_bytes(CODEC.encode(message))

    def send_bytes(self, encoded: bytes | memoryview) -> None:
        """Send a message that is already encoded. Raises `LinkClosed`."""
        try:
            self.connection.send_bytes(encoded)
        except OSError as error:
            raise LinkClosed from error

    def receive_bytes(self) -> bytes:
        """Return the next raw bytes. Raises `LinkClosed`."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise LinkClosed from error

    def receive(self) -> Any:
        """Return the next message. Raises `LinkClosed`, or `msgspec.DecodeError` for bytes that are not a message."""
        return CODEC.decode(self.receive_bytes())
