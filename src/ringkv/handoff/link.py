"""Link: messages and raw bytes over a socket between two workers.

A frame is the length of a header (4 bytes, big-endian), the header in msgpack, and the raw bytes that it announces.
"""

import socket
import struct
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

import msgspec

from ringkv.base.failure import in_short
from ringkv.wire.codec import Codec
from ringkv.wire.link import InvalidMessage

LARGEST_HEADER = 16 << 20  # bytes; a prompt of a million tokens has less than 5 MB
FLUSH = 1.0  # seconds
_LENGTH = struct.Struct("!I")


class LinkClosed(Exception):
    """The other end is closed or lost, or this one is closed."""


class Link:
    """One end. One thread receives; any thread may send, because a thread of its own writes to the socket."""

    def __init__(self, end: socket.socket, codec: Codec) -> None:
        """codec: of the messages that the other end may send."""
        self._socket, self._codec = end, codec
        self._outbox: SimpleQueue[tuple[bytes | memoryview, ...] | None] = SimpleQueue()
        self._writer = Thread(target=self._write, name="link-writer", daemon=True)
        self._writer.start()

    def send(self, message: Any, *raw: bytes | memoryview) -> None:
        """Send a message and the raw bytes that it announces, soon. Raises `InvalidMessage` if it is too large."""
        header = self._codec.encode(message)
        if len(header) > LARGEST_HEADER:
            raise InvalidMessage(f"a header of {len(header):,} bytes; {LARGEST_HEADER:,} are allowed")
        self._outbox.put((_LENGTH.pack(len(header)) + header, *raw))

    def receive(self) -> Any:
        """Return the next message. Raises `LinkClosed` or `InvalidMessage`."""
        size: int = _LENGTH.unpack(self._read(_LENGTH.size))[0]
        if size > LARGEST_HEADER:
            raise InvalidMessage(f"a header of {size:,} bytes; {LARGEST_HEADER:,} are allowed")
        try:
            return self._codec.decode(self._read(size))
        except msgspec.DecodeError as error:
            raise InvalidMessage(in_short(error)) from error

    def receive_into(self, buffer: memoryview) -> None:
        """Fill a buffer with raw bytes. Raises `LinkClosed`."""
        while len(buffer):
            try:
                count = self._socket.recv_into(buffer)
            except OSError as error:
                raise LinkClosed from error
            if not count:
                raise LinkClosed
            buffer = buffer[count:]

    def shut(self) -> None:
        """End the connection. A thread that receives gets `LinkClosed`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Send what waits, within `FLUSH` seconds, and free the socket. The thread that receives calls it last."""
        self._outbox.put(None)
        self._writer.join(FLUSH)
        self.shut()
        self._writer.join()
        self._socket.close()

    def _read(self, size: int) -> bytes:
        buffer = bytearray(size)
        self.receive_into(memoryview(buffer))
        return bytes(buffer)

    def _write(self) -> None:
        is_open = True
        while (parts := self._outbox.get()) is not None:
            try:
                for part in parts if is_open else ():
                    self._socket.sendall(part)
            except OSError:
                is_open = False  # what is sent later is discarded
                self.shut()
