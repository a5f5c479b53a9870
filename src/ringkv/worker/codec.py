"""Messages as bytes: msgpack of (class name, fields). Decoding checks every field's type and runs nothing."""

from typing import Any, get_args

import msgspec

from ringkv.base.messages import EngineMessage
from ringkv.base.selectors import SELECTORS, Selector


def _selector(kind: type, fields: Any) -> Selector:
    """What a field of type `Selector` holds: the fields of the one that is named."""
    own = dict(fields)
    if kind is not Selector or own.get("name") not in SELECTORS:
        raise ValueError(f"no selector is called {own.get('name')!r}")
    return msgspec.convert(own, SELECTORS[own.pop("name")])


_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind, dec_hook=_selector) for kind in get_args(EngineMessage)
}


def encode(message: EngineMessage) -> bytes:
    """Raises `TypeError` where a field holds what msgpack has no form for."""
    return _encoder.encode((type(message).__name__, message))


def decode(data: bytes) -> EngineMessage:
    """Raises `msgspec.DecodeError` for bytes that are no message."""
    name, fields = _envelope.decode(data)
    if name not in _decoders:
        raise msgspec.DecodeError(f"no message is called {name!r}")
    message: EngineMessage = _decoders[name].decode(fields)
    return message
