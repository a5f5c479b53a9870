"""The `Host` header, checked against DNS rebinding.

A page in a browser may make its own name point to a loopback address and then read what a server there answers to it.
Its requests have the page's name in `Host`.
"""

from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address

from starlette.types import Scope

from ringkv.base.errors import WrongHost

ANY = "*"
LOCAL_NAME = "localhost"


def accepted_hosts(bound: str, extra: Sequence[str] = ()) -> frozenset[str] | None:
    """Return the names that `Host` may have, besides those of this machine; None accepts any.

    bound: the address that the server listens on. extra: names from the user; "*" accepts any.
    """
    if ANY in extra or not (extra or is_local(bound)):
        return None
    return frozenset(name.lower().rstrip(".") for name in extra)


def check_host(scope: Scope, accepted: frozenset[str] | None) -> None:
    """Raise WrongHost unless `Host` is this machine's, the address that the client reached, or an accepted name."""
    if accepted is None:
        return
    name = host_name(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
    reached = (scope.get("server") or ("",))[0]
    if not (is_local(name) or name == reached or name in accepted):
        raise WrongHost(
            f"this server does not answer to the host {name[:100]!r}; use its address, or start it with --allowed-host"
        )


def is_local(name: str) -> bool:
    """Return whether a name or address is always this machine."""
    with suppress(ValueError):
        return name == LOCAL_NAME or ip_address(name).is_loopback
    return False


def host_name(host: str) -> str:
    """Return the name in a `Host` header: lower case, without port, brackets and final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")
