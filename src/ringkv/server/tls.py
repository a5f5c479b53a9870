"""TLS: a certificate and its key, which uvicorn serves HTTPS with."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringkv.base.errors import InvalidRequest


@dataclass(frozen=True)
class TLS:
    """key: None if the certificate's file contains it."""

    certificate: Path
    key: Path | None = None

    def check(self) -> None:
        """Raise InvalidRequest if the files are not a certificate chain and its unencrypted key in PEM."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = self.certificate if self.key is None else f"{self.certificate} and {self.key}"
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise InvalidRequest(
                f"{files} cannot be used for TLS ({reason}); give a certificate and its key in PEM, without password",
                "tls_cert",
            ) from error

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `uvicorn.Config`."""
        return {"ssl_certfile": self.certificate, "ssl_keyfile": self.key}


def _no_password() -> str:
    """Return an empty password; without this, OpenSSL would ask for one at the terminal."""
    return ""
