"""handshake: how a decode worker connects to a prefill worker; see `wire.handshake`."""

import socket
from functools import partial
from typing import get_args

from ringkv.base.errors import InvalidRequest, PrefillUnavailable
from ringkv.handoff.address import Address
from ringkv.handoff.identity import Identity
from ringkv.handoff.messages import FromDecode, FromPrefill
from ringkv.wire.handshake import Hello, Welcome, admit, introduce
from ringkv.wire.link import Codec, InvalidMessage, LinkClosed
from ringkv.wire.outbox import QueuedLink

CONNECT = 10.0  # seconds
LARGEST = 16 << 20  # bytes of a message; a prompt of a million tokens has less than 5 MB
TO_DECODE = partial(QueuedLink, codec=Codec(Hello, *get_args(FromDecode)), largest=LARGEST)
TO_PREFILL = partial(QueuedLink, codec=Codec(Welcome, *get_args(FromPrefill)), largest=LARGEST)


def dialled(address: Address, secret: bytes, identity: Identity) -> QueuedLink:
    """Connect to a prefill worker. Raises PrefillUnavailable if none listens, InvalidRequest if it refuses."""
    who, hello = f"the prefill worker at {address}", Hello(identity.fingerprint, identity.settings)
    try:
        end = socket.create_connection(address, CONNECT)
    except OSError as error:
        raise PrefillUnavailable(f"no prefill worker listens at {address} ({error}); start one there") from error
    try:
        return introduce(end, secret, hello, TO_PREFILL, who)
    except (LinkClosed, InvalidMessage) as error:
        raise PrefillUnavailable(f"{who} ended the connection ({error})") from error


def accepted(end: socket.socket, secret: bytes, identity: Identity, who: str) -> QueuedLink:
    """Accept a decode worker. who: its name in messages. Raises InvalidRequest if it is refused.

    It is `OtherConfiguration` if the worker has proved that it has the secret.
    """
    try:
        link, _ = admit(end, secret, identity.refusal, TO_DECODE, who)
    except (LinkClosed, InvalidMessage) as error:
        raise InvalidRequest(f"{who} is not a decode worker ({error})", "prefill") from error
    return link
