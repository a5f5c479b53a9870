"""download: one file over HTTP, continued where it stopped. Honours the environment's proxies and certificates."""

import os
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from ringkv.base.errors import PullFailed

CHUNK = 1 << 18  # bytes read at a time
ATTEMPTS = 5  # in a row without a byte gained
TIMEOUT_S = 60.0
# A file of certificates to trust, first found; where none is set the system's are used.
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


class Refused(Exception):
    """The server wants credentials, or its certificate is not trusted: another client may know better."""


def download(url: str, path: Path, size: int, seen: Callable[[int], None], pause_s: float = 1.0) -> None:
    """Bring `path` to `size` bytes, keeping what it has; `seen` hears its size as it grows.

    Raises Refused, or PullFailed when the network fails `ATTEMPTS` times in a row; what was fetched stays.
    """
    failures = 0
    while (had := _size(path)) != size:
        if had > size:
            path.unlink()
        try:
            _fetch(url, path, seen)
            trouble = f"it ended after {_size(path)} of {size} bytes"
        except (OSError, HTTPException) as error:
            if _is_refusal(error):
                raise Refused(str(error)) from error
            trouble = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 0 if had < _size(path) <= size else failures + 1
        if failures == ATTEMPTS:
            raise PullFailed(
                f"downloading {path.name} failed {ATTEMPTS} times ({trouble}); {had} of {size} bytes are kept: "
                "check the network and run it again to continue"
            )
        time.sleep(pause_s * failures)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(url: str, path: Path, seen: Callable[[int], None]) -> None:
    """One request for what is missing, appended; a server that cannot start in the middle sends all of it again."""
    request = Request(url, headers={"Range": f"bytes={_size(path)}-", "User-Agent": "ringkv"})
    with _opener().open(request, timeout=TIMEOUT_S) as response:
        continues = getattr(response, "status", None) == 206
        with path.open("ab" if continues else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                seen(file.tell())


def _opener() -> OpenerDirector:
    bundle = next((path for name in CERTIFICATES if (path := os.environ.get(name)) and Path(path).is_file()), None)
    return build_opener(ProxyHandler(), HTTPSHandler(context=ssl.create_default_context(cafile=bundle)))


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, HTTPError):
        return error.code in (401, 403, 407)
    return isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError)
