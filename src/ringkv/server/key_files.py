"""read_keys: the API keys of files and of the environment.

A file has a key on each line, `label:key` or `label:sha256:HEX`, and comments that begin with #.
"""

import re
from collections.abc import Iterator, MutableMapping, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path

from ringkv.base.errors import InvalidRequest
from ringkv.server.protocol.keys import ApiKey

ONE, SEVERAL = "RINGKV_API_KEY", "RINGKV_API_KEYS"  # environment: one key; entries separated by spaces or commas
SHORTEST = 16  # characters; fewer can be guessed
HASHED = "sha256:"
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_KEY = re.compile(r"[!-~]+")  # what a header can carry unchanged


def read_keys(files: Sequence[Path], environment: MutableMapping[str, str]) -> tuple[ApiKey, ...]:
    """Return the keys of files and environment, and delete them from the latter: child processes inherit it.

    Raises InvalidRequest with the file and line.
    """
    entries = [*chain.from_iterable(map(_of_file, files)), *_of_environment(environment)]
    keys = tuple(_parsed(origin, entry) for origin, entry in entries)
    labels: dict[bytes, str] = {}
    for key in keys:
        if labels.setdefault(key.digest, key.label) != key.label:
            both = f"{labels[key.digest]} and {key.label}"
            raise InvalidRequest(f"{both} have the same API key; give each its own", "api_keys")
    return keys


def _of_file(file: Path) -> list[tuple[str, str]]:
    """Return each entry with its origin."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidRequest(f"cannot read API keys from {file} ({error.strerror})", "api_keys") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not a text file; write label:key lines", "api_keys") from error
    numbered = ((number, line.strip()) for number, line in enumerate(lines, 1))
    entries = [(f"{file} line {number}", line) for number, line in numbered if line and not line.startswith("#")]
    if not entries:
        raise InvalidRequest(f"{file} contains no API key; write label:key lines", "api_keys")
    return entries


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
        written = key.removeprefix(HASHED)
        if not _HEX.fullmatch(written):
            count = len(written)
            text = f"{origin}: sha256 is followed by {count} characters, not by 64 hex digits"
            raise InvalidRequest(text, "api_keys")
        return ApiKey(label, bytes.fromhex(written))
    if len(key) < SHORTEST or not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"{origin}: the API key {label} must have at least {SHORTEST} characters of ASCII without spaces; "
            "`openssl rand -hex 24` makes one",
            "api_keys",
        )
    return ApiKey(label, sha256(key.encode()).digest())
