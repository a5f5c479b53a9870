"""API keys: who may send requests, and under which label.

A file has a key on each line, `label:key` or `label:sha256:HEX`, and comments that begin with #. Only digests stay in
memory, and no message contains a key.
"""

import re
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from starlette.types import Scope

from ringkv.base.errors import InvalidRequest, Unauthorized

CALLER = "ringkv.caller"  # scope key: the `Caller` of a request
OPEN_PATHS = frozenset({"/health", "/ready", "/", "/dashboard"})  # need no key
OPEN_FOLDER = "/assets/"  # the web page's files, which hold no secret, need none either
ONE, SEVERAL = "RINGKV_API_KEY", "RINGKV_API_KEYS"  # environment: one key; entries separated by spaces or commas
SHORTEST = 16  # characters; fewer can be guessed
HASHED = "sha256:"
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_KEY = re.compile(r"[!-~]+")  # what a header can carry unchanged
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


def is_open(path: str) -> bool:
    """Whether a path needs no key."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def caller_of(scope: Scope) -> Caller:
    caller = scope.get(CALLER, ANYBODY)
    assert isinstance(caller, Caller)
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
        if not self.keys or is_open(scope["path"]):
            return ANYBODY
        sent = _BEARER.fullmatch(dict(scope["headers"]).get(b"authorization", b""))
        if sent is None:
            raise Unauthorized("there is no API key; send one as Authorization: Bearer KEY")
        label = self._label(sha256(sent[1]).digest())
        if label is None:
            raise Unauthorized("this API key is not known here; check it, or ask the operator of this server for one")
        return Caller(label, self.shares_prefixes)

    def _label(self, digest: bytes) -> str | None:
        """Compare with every key, so that the time does not depend on which one matches."""
        matching = [key.label for key in self.keys if compare_digest(key.digest, digest)]
        return matching[0] if matching else None


NO_KEYS = ApiKeys()


def read_keys(files: Sequence[Path], environment: MutableMapping[str, str]) -> tuple[ApiKey, ...]:
    """Return the keys of files and environment, and delete them from the latter: child processes inherit it.

    Raises InvalidRequest with the file and line.
    """
    entries = [*_of_files(files), *_of_environment(environment)]
    keys = tuple(_parsed(origin, entry) for origin, entry in entries)
    _check_distinct(keys)
    return keys


def _of_files(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield each entry with its origin."""
    for file in files:
        found = list(_of_file(file))
        if not found:
            raise InvalidRequest(f"{file} contains no API key; write label:key lines", "api_keys")
        yield from found


def _of_file(file: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidRequest(f"cannot read API keys from {file} ({error.strerror})", "api_keys") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not a text file; write label:key lines", "api_keys") from error
    for number, line in enumerate(lines, 1):
        if (entry := line.strip()) and not entry.startswith("#"):
            yield f"{file} line {number}", entry


def _of_environment(environment: MutableMapping[str, str]) -> Iterator[tuple[str, str]]:
    for number, entry in enumerate(re.split(r"[\s,]+", environment.pop(SEVERAL, "").strip()), 1):
        if entry:
            yield f"{SEVERAL} entry {number}", entry
    if key := environment.pop(ONE, "").strip():
        yield ONE, f"default:{key}"


def _parsed(origin: str, entry: str) -> ApiKey:
    label, _, key = (part.strip() for part in entry.partition(":"))
    if not _LABEL.fullmatch(label) or not key:
        form = "label:key, and a label has up to 64 letters, digits, dots, dashes and underscores"
        raise InvalidRequest(f"{origin} is not an API key; write {form}", "api_keys")
    if key.startswith(HASHED):
        return ApiKey(label, _digest(origin, key.removeprefix(HASHED)))
    if len(key) < SHORTEST or not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"{origin}: the API key {label} must have at least {SHORTEST} characters of ASCII without spaces; "
            "`openssl rand -hex 24` makes one",
            "api_keys",
        )
    return ApiKey(label, sha256(key.encode()).digest())


def _digest(origin: str, written: str) -> bytes:
    if not _HEX.fullmatch(written):
        count = len(written)
        raise InvalidRequest(f"{origin}: sha256 is followed by {count} characters, not by 64 hex digits", "api_keys")
    return bytes.fromhex(written)


def _check_distinct(keys: Iterable[ApiKey]) -> None:
    labels: dict[bytes, str] = {}
    for key in keys:
        if labels.setdefault(key.digest, key.label) != key.label:
            both = f"{labels[key.digest]} and {key.label}"
            raise InvalidRequest(f"{both} have the same API key; give each its own", "api_keys")
