"""Channel: messages over one end of a pipe. One thread may send while another receives.

The pipe is a pair of sockets without a name, so only the two processes that hold its ends can write to it. Neither end
trusts what it reads: a message has at most `LARGEST_MESSAGE` bytes and is decoded by its declared types.
"""

import select
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection

import msgspec

from ringkv.base.failure import in_short
from ringkv.base.messages import EngineMessage
from ringkv.worker.codec import decode, encode

LARGEST_MESSAGE = 256 << 20  # bytes; 128 requests that share a prompt of 400,000 tokens have as many


class ChannelClosed(Exception):
    """The other end is closed, or this one is."""


class InvalidMessage(Exception):
    """The other end sent bytes that are not a message, or too many of them."""


class Channel:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._arrivals = select.poll()  # kept, because `Connection.poll` makes a selector for each call
        self._arrivals.register(connection.fileno(), select.POLLIN)

    def send(self, message: EngineMessage) -> None:
        """Send a message. Blocks while the pipe is full. Raises `ChannelClosed`."""
        self.send_bytes(encode(message))

    def send_bytes(self, encoded: bytes) -> None:
        """Send a message that is already encoded; see `send`."""
        assert len(encoded) <= LARGEST_MESSAGE, f"a message of {len(encoded):,} bytes"
        try:
            self._connection.send_bytes(encoded)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> EngineMessage:
        """Return the next message. Blocks until there is one. Raises `ChannelClosed` or `InvalidMessage`.

        A message that ends too early counts as closed, because a killed process may leave one.
        """
        try:
            return decode(self._connection.recv_bytes(LARGEST_MESSAGE))
        except msgspec.DecodeError as error:
            raise InvalidMessage(in_short(error)) from error
        except (EOFError, OSError) as error:
            if "bad message length" in str(error):  # Connection has no error class for this
                raise InvalidMessage(f"a message of more than {LARGEST_MESSAGE:,} bytes") from error
            raise ChannelClosed from error

    def is_waiting(self) -> bool:
        """Whether `receive` would not block: there is a message, or the other end is closed."""
        try:
            self._connection.fileno()  # raises if this end is closed
            return bool(self._arrivals.poll(0))
        except OSError as error:
            raise ChannelClosed from error

    def wait(self, others: Sequence[int] = (), seconds: float | None = None) -> None:
        """Block until `is_waiting`, one of the other descriptors is readable, or so many seconds have passed."""
        try:
            connection.wait([self._connection, *others], seconds)
        except (OSError, ValueError) as error:
            raise ChannelClosed from error

    def close(self) -> None:
        self._connection.close()
