"""API keys: who may send requests, and under which label.

Only digests stay in memory, and no message contains a key.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from starlette.types import Scope

from ringkv.base.errors import Unauthorized
from ringkv.server.protocol.scope import CALLER

OPEN_PATHS = frozenset({"/health", "/ready", "/", "/dashboard"})  # need no key
OPEN_FOLDER = "/assets/"  # the web page's files, which hold no secret, need none either
_BEARER = re.compile(rb"bearer +([!-~]+) *", re.IGNORECASE)


@dataclass(frozen=True)
class Caller:
    """label: of the API key that the request has; "" on a server without keys.

    shares_prefixes: the caller may use what other callers' prompts left in the prefix store.
    """

    label: str = ""
    shares_prefixes: bool = True

    def salt(self, sent: str) -> str:
        """Return `Request.salt` for a `cache_salt` that was sent. Salts of two labels never meet."""
        if self.shares_prefixes:
            return sent
        return sha256(f"{self.label}\0{sent}".encode(errors="surrogatepass")).hexdigest()


ANYBODY = Caller()


def caller_of(scope: Scope) -> Caller:
    caller: Caller = scope.get(CALLER, ANYBODY)
    return caller


@dataclass(frozen=True)
class ApiKey:
    """digest: SHA-256 of the key."""

    label: str
    digest: bytes


@dataclass(frozen=True)
class ApiKeys:
    """The keys that a server accepts; without any, everybody may send requests."""

    keys: tuple[ApiKey, ...] = ()
    shares_prefixes: bool = False

    def identify(self, scope: Scope) -> Caller:
        """Return who sent the request. Raises Unauthorized for a missing or unknown key."""
        path = scope["path"]
        if not self.keys or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return ANYBODY
        sent = _BEARER.fullmatch(dict(scope["headers"]).get(b"authorization", b""))
        if sent is None:
            raise Unauthorized("there is no API key; send one as Authorization: Bearer KEY")
        digest = sha256(sent[1]).digest()
        # Compare with every key, so that the time does not depend on which of them matches.
        labels = [key.label for key in self.keys if compare_digest(key.digest, digest)]
        if not labels:
            raise Unauthorized("this API key is not known here; check it, or ask the operator of this server for one")
        return Caller(labels[0], self.shares_prefixes)


NO_KEYS = ApiKeys()
