"""EdgeOptions: what a user chose for the server's edge, and the limits that follow from it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringkv.base.errors import InvalidRequest
from ringkv.machine.descriptors import allow_descriptors
from ringkv.server.bodies import BodyLimits
from ringkv.server.guard import Access
from ringkv.server.hosts import accepted_hosts, is_local
from ringkv.server.keys import ApiKey, ApiKeys
from ringkv.server.protocol import ConnectionLimits
from ringkv.server.tls import TLS

log = logging.getLogger(__name__)

OWN_DESCRIPTORS = 128  # of the process besides connections: libraries, the listener, the engine's channel


@dataclass(frozen=True)
class EdgeOptions:
    """None takes the default.

    rate_limit: requests a minute of each key. allowed_hosts: names that `Host` may have, besides this machine's own.
    max_body: bytes. client_timeout: seconds to send headers, to send a body, and to read.
    """

    keys: tuple[ApiKey, ...] = ()
    share_prefixes: bool = False
    rate_limit: int | None = None
    allowed_hosts: Sequence[str] = ()
    max_body: int | None = None
    max_connections: int = ConnectionLimits.connections
    client_timeout: float = ConnectionLimits.seconds
    tls: TLS | None = None

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
        allowed = allow_descriptors(self.max_connections + OWN_DESCRIPTORS) - OWN_DESCRIPTORS
        if allowed < self.max_connections:
            log.warning(f"{allowed:,} connections instead of {self.max_connections:,}: raise `ulimit -n` for more")
        return ConnectionLimits(max(1, min(allowed, self.max_connections)), self.client_timeout)

    def warn_if_open(self, host: str) -> None:
        if not self.keys and not is_local(host):
            log.warning(f"anybody who reaches {host} may send requests; --api-keys asks for a key")


DEFAULT_EDGE = EdgeOptions()


def tls_of(certificate: Path | None, key: Path | None) -> TLS | None:
    """Return the checked TLS files; None without any. Raises InvalidRequest."""
    if certificate is None:
        if key is not None:
            raise InvalidRequest("--tls-key needs --tls-cert, the certificate of this key", "tls_key")
        return None
    tls = TLS(certificate, key)
    tls.check()
    return tls
