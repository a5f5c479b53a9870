"""Link: messages over one end of a pair of sockets, or of a connection.

A message is its length (8 bytes, big-endian) and its bytes: msgpack of (class name, fields). Raw bytes may follow it.
Neither end trusts what it reads: a message has a bounded size. Decoding checks every field's type and executes no code.
"""

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import connection
from select import POLLIN, poll
from typing import Any
from weakref import finalize

import msgspec

from ringkv.base.failure import in_short
from ringkv.base.selectors import SELECTORS, Selector

LARGEST = 256 << 20  # bytes of a message; 128 requests that share a prompt of 400,000 tokens have as many
_LENGTH = struct.Struct("!Q")


def _selector(declared: type, fields: Any) -> Selector:
    """Decode a field of type `Selector`: its name determines the class of its other fields."""
    parameters = dict(fields)
    if declared is not Selector or parameters.get("name") not in SELECTORS:
        raise ValueError(f"unknown selector {parameters.get('name')!r}")
    return msgspec.convert(parameters, SELECTORS[parameters.pop("name")])


_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


class Codec:
    """Encodes and decodes messages of some classes."""

    def __init__(self, *classes: type) -> None:
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
            message.__name__: msgspec.msgpack.Decoder(message, dec_hook=_selector) for message in classes
        }

    def encode(self, message: Any) -> bytes:
        """Encode a message. Raises `TypeError` if msgpack does not support the type of a field."""
        return _encoder.encode((type(message).__name__, message))

    def decode(self, data: bytes | bytearray) -> Any:
        """Decode a message. Raises `msgspec.DecodeError` for bytes that are not a message."""
        try:
            name, fields = _envelope.decode(data)
            if name not in self._decoders:
                raise msgspec.DecodeError(f"unknown message {name!r}")
            return self._decoders[name].decode(fields)
        except msgspec.DecodeError:
            raise
        except Exception as error:  # nested too deeply, a name that is not UTF-8, or a value that its class refuses
            raise msgspec.DecodeError(in_short(error)) from error


class LinkClosed(Exception):
    """The other end is closed or lost, or this end is closed."""


class InvalidMessage(Exception):
    """The bytes are not a message of the other end, or too many."""


class Link:
    """One end. One thread may send while another receives."""

    def __init__(self, end: socket.socket, codec: Codec, largest: int = LARGEST) -> None:
        """codec: of the messages that the other end may send. largest: bytes of a message of either end."""
        self._end, self._codec, self._largest = end, codec, largest
        self._finalize = finalize(self, end.close)  # not `__del__`, which may come after that of the socket
        self._finalize.atexit = False
        self._is_lost = False  # it is not known where the next message begins
        self._arrivals = poll()
        self._arrivals.register(end, POLLIN)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any, *raw: bytes | memoryview) -> None:
        """Send a message and the raw bytes that follow it; see `send_bytes`."""
        self.send_bytes(self._codec.encode(message), *raw)

    def send_bytes(self, encoded: bytes | memoryview, *raw: bytes | memoryview) -> None:
        """Send a message that is already encoded. Blocks while the socket is full.

        Raises `LinkClosed`, and `InvalidMessage` for a message that is too large.
        """
        self._check(len(encoded))
        try:
            for part in (_LENGTH.pack(len(encoded)), encoded, *raw):
                self._end.sendall(part)
        except OSError as error:
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_WR)  # no other message may follow a part of this message
            raise LinkClosed from error

    def receive(self) -> Any:
        """Return the next message. Blocks until it has arrived. Raises `LinkClosed` or `InvalidMessage`."""
        data = self.receive_bytes()
        try:
            return self._codec.decode(data)
        except msgspec.DecodeError as error:
            raise InvalidMessage(in_short(error)) from error

    def receive_bytes(self) -> bytearray:
        """Return the bytes of the next message. Raises `LinkClosed`, or `InvalidMessage` for too many.

        A message that ends too early counts as closed, because a killed process may leave a part of a message.
        """
        if self._is_lost:
            raise LinkClosed
        size: int = _LENGTH.unpack(self._read(_LENGTH.size))[0]
        self._is_lost = size > self._largest
        self._check(size)
        return self._read(size)

    def receive_into(self, buffer: memoryview) -> None:
        """Fill a buffer with the raw bytes that follow a message. Raises `LinkClosed`."""
        while len(buffer):
            try:
                count = self._end.recv_into(buffer)
            except OSError as error:
                raise LinkClosed from error
            if not count:
                raise LinkClosed
            buffer = buffer[count:]

    def is_waiting(self, seconds: float = 0.0) -> bool:
        """Whether `receive` would not block, now or within so many seconds: bytes wait, or the other end is closed."""
        if self.fileno() < 0:
            raise LinkClosed
        return bool(self._arrivals.poll(1000 * seconds))

    def wait(self, others: Sequence[int] = (), seconds: float | None = None) -> None:
        """Block until `is_waiting`, one of the other descriptors is readable, or so many seconds have passed."""
        try:
            connection.wait([self._end, *others], seconds)
        except (OSError, ValueError) as error:
            raise LinkClosed from error

    def shut(self) -> None:
        """End the connection, from any thread. A thread that receives gets `LinkClosed`."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket. What was sent before still arrives. A link that is deleted is closed."""
        self._finalize()

    def _check(self, size: int) -> None:
        if size > self._largest:
            raise InvalidMessage(f"a message of {size:,} bytes; {self._largest:,} are allowed")

    def _read(self, size: int) -> bytearray:
        buffer = bytearray(size)
        self.receive_into(memoryview(buffer))
        return buffer
