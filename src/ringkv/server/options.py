"""What a user chose for a server: its edge, its certificate and its queues, and the limits that follow from it."""

import logging
import resource
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringkv.base.engine import Limits
from ringkv.base.errors import InvalidRequest
from ringkv.server.protocol.bodies import BodyLimits
from ringkv.server.protocol.connections import ConnectionLimits
from ringkv.server.protocol.guard import Access, accepted_hosts, is_local
from ringkv.server.protocol.keys import ApiKey, ApiKeys
from ringkv.server.run.admission import QueueLimits

log = logging.getLogger(__name__)

OWN_DESCRIPTORS = 128  # of the process besides connections: libraries, the listener, the engine's channel
PER_SLOT, AT_LEAST = 8, 64  # requests that may wait by default
PROMPTS = 16  # of the longest length, whose tokens may wait by default


@dataclass(frozen=True)
class EdgeOptions:
    """Who may send requests, how many and how large. None takes the default.

    rate_limit: requests a minute of each key. allowed_hosts: names that `Host` may have, besides this machine's own.
    max_body: bytes. client_timeout: seconds to send headers, to send a body, and to read. tls: see `tls_of`.
    """

    keys: tuple[ApiKey, ...] = ()
    share_prefixes: bool = False
    rate_limit: int | None = None
    allowed_hosts: Sequence[str] = ()
    max_body: int | None = None
    max_connections: int = ConnectionLimits.connections
    client_timeout: float = ConnectionLimits.seconds
    tls: Mapping[str, Any] = field(default_factory=dict)

    def access(self, host: str, longest_prompt: int) -> Access:
        """Return the limits of a server that listens on `host` and takes prompts of so many tokens."""
        return Access(
            ApiKeys(self.keys, self.share_prefixes),
            accepted_hosts(host, self.allowed_hosts),
            self.rate_limit,
            BodyLimits.of(longest_prompt, self.max_body, self.client_timeout),
        )

    def connections(self) -> ConnectionLimits:
        """Return the limits of connections, and raise this process's limit of descriptors for them."""
        allowed = _allow_descriptors(self.max_connections + OWN_DESCRIPTORS) - OWN_DESCRIPTORS
        if allowed < self.max_connections:
            log.warning(f"{allowed:,} connections instead of {self.max_connections:,}: raise `ulimit -n` for more")
        return ConnectionLimits(max(1, min(allowed, self.max_connections)), self.client_timeout)

    def warn_if_open(self, host: str) -> None:
        if not self.keys and not is_local(host):
            log.warning(f"anybody who reaches {host} may send requests; --api-keys asks for a key")


@dataclass(frozen=True)
class LoadOptions:
    """What a server does under load, as its options say. None takes the default, which depends on the engine.

    request_timeout: seconds that a request may take, at most; None sets no limit.
    """

    max_queue: int | None = None
    max_queue_tokens: int | None = None
    request_timeout: float | None = None

    def queue(self, limits: Limits) -> QueueLimits:
        return QueueLimits(
            max(AT_LEAST, PER_SLOT * limits.slots) if self.max_queue is None else self.max_queue,
            PROMPTS * limits.longest_prompt if self.max_queue_tokens is None else self.max_queue_tokens,
        )


DEFAULT_LOAD = LoadOptions()
DEFAULT_EDGE = EdgeOptions()


def tls_of(certificate: Path | None, key: Path | None) -> dict[str, Any]:
    """Return the arguments of `uvicorn.Config` that serve HTTPS; none without a certificate.

    key: None if the certificate's file contains it. Raises InvalidRequest if the files are not a certificate chain and
    its unencrypted key in PEM.
    """
    if certificate is None:
        if key is not None:
            raise InvalidRequest("--tls-key needs --tls-cert, the certificate of this key", "tls_key")
        return {}
    try:  # with an empty password: without any, OpenSSL would ask at the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=str)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        files = certificate if key is None else f"{certificate} and {key}"
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InvalidRequest(
            f"{files} cannot be used for TLS ({reason}); give a certificate and its key in PEM, without password",
            "tls_cert",
        ) from error
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def _allow_descriptors(wanted: int) -> int:
    """Raise this process's limit of open files and sockets to `wanted` if the system permits; return what it is then.

    Programs start with 1,024 on most systems and may raise it themselves.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
