"""Download a file over HTTP and resume if interrupted. Honours the environment's proxies and certificates."""

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
ATTEMPTS = 5  # consecutive, without progress
TIMEOUT_S = 60.0
# Variables that name a file of trusted certificates; the first set is used, else the system's certificates.
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


class CredentialsNeeded(Exception):
    """The server requires credentials or its certificate is not trusted; pip may be configured for both."""


def download(url: str, path: Path, size: int, on_size: Callable[[int], None], pause_s: float = 1.0) -> None:
    """Download the missing bytes of `path`, up to `size`; `on_size` is called with its size as it grows.

    Raises CredentialsNeeded, or PullFailed if the network fails `ATTEMPTS` times in a row; the bytes so far are kept.
    """
    failures = 0
    while (before := _size(path)) != size:
        if before > size:
            path.unlink()
        try:
            _fetch(url, path, on_size)
            reason = f"it ended after {_size(path)} of {size} bytes"
        except (OSError, HTTPException) as error:
            if _is_refusal(error):
                raise CredentialsNeeded(str(error)) from error
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 0 if before < _size(path) <= size else failures + 1
        if failures == ATTEMPTS:
            raise PullFailed(
                f"downloading {path.name} failed {ATTEMPTS} times ({reason}); {before} of {size} bytes are kept: "
                "check the network and run it again to resume"
            )
        time.sleep(pause_s * failures)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(url: str, path: Path, on_size: Callable[[int], None]) -> None:
    """Request the missing bytes and append them; a server without range support sends the whole file again."""
    request = Request(url, headers={"Range": f"bytes={_size(path)}-", "User-Agent": "ringkv"})
    with _opener().open(request, timeout=TIMEOUT_S) as response:
        is_partial = getattr(response, "status", None) == 206
        with path.open("ab" if is_partial else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                on_size(file.tell())


def _opener() -> OpenerDirector:
    bundle = next((path for name in CERTIFICATES if (path := os.environ.get(name)) and Path(path).is_file()), None)
    return build_opener(ProxyHandler(), HTTPSHandler(context=ssl.create_default_context(cafile=bundle)))


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, HTTPError):
        return error.code in (401, 403, 407)
    return isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError)
