"""Channel: messages over one end of a pipe. One thread may send while another receives."""

from multiprocessing.connection import Connection

from ringkv.base.messages import EngineMessage
from ringkv.worker.codec import decode, encode


class ChannelClosed(Exception):
    """The other end is closed, or this one is."""


class Channel:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: EngineMessage) -> None:
        """Send a message. Blocks while the pipe is full. Raises `ChannelClosed`."""
        self.send_bytes(encode(message))

    def send_bytes(self, encoded: bytes) -> None:
        """Send a message that is already encoded; see `send`."""
        try:
            self._connection.send_bytes(encoded)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> EngineMessage:
        """Return the next message. Blocks until there is one. Raises `ChannelClosed`."""
        try:
            return decode(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise ChannelClosed from error

    def is_waiting(self) -> bool:
        """Whether `receive` would not block: there is a message, or the other end is closed."""
        try:
            return self._connection.poll()
        except OSError as error:
            raise ChannelClosed from error

    def close(self) -> None:
        self._connection.close()
