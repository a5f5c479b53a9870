"""Messages as bytes: msgpack of (class name, fields). Decoding checks every field's type and executes no code."""

from typing import Any

import msgspec

from ringkv.base.failure import in_short
from ringkv.base.selectors import SELECTORS, Selector


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
