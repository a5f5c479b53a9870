"""Options of `ringkv serve` that say who may send requests, how many and how large."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ringkv.cli.options import SWITCH, option
from ringkv.plan.units import parse_bytes

if TYPE_CHECKING:
    from ringkv.server.options import EdgeOptions

_access = partial(option, "Access")


@dataclass(frozen=True)
class AccessOptions:
    api_keys: Annotated[
        list[Path] | None,
        _access(
            "--api-keys",
            "FILE",
            "File of API keys, `label:key` or `label:sha256:HEX` on each line; repeatable. Also the environment: "
            "RINGKV_API_KEY is one key, RINGKV_API_KEYS several label:key. Without keys, everybody may send requests.",
        ),
    ] = None
    share_prefixes: Annotated[
        bool,
        _access(
            "--share-prefixes", SWITCH, "Share the prefix store between API keys; by default each has its own part."
        ),
    ] = False
    rate_limit: Annotated[
        int | None,
        _access("--rate-limit", "N", "Requests a minute of each API key; more get a 429. No limit by default.", min=1),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        _access(
            "--allowed-host",
            "NAME",
            "Name that clients may have in `Host`; repeatable, * is any. By default this machine's own names if --host "
            "is a loopback address, else any.",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None, _access("--tls-cert", "FILE", "Certificate chain in PEM; the server then speaks HTTPS only.")
    ] = None
    tls_key: Annotated[
        Path | None, _access("--tls-key", "FILE", "Key of --tls-cert in PEM, if that file does not contain it.")
    ] = None
    max_body: Annotated[
        str | None,
        _access(
            "--max-body", "BYTES", "Longest body. Default: 64 bytes for each token of --max-prompt, at least 1MiB."
        ),
    ] = None
    max_connections: Annotated[
        int,
        _access("--max-connections", "N", "Connections at once, 1000 by default; one that is idle makes room.", min=1),
    ] = 1000
    client_timeout: Annotated[
        float,
        _access(
            "--client-timeout",
            "SECONDS",
            "Time for a client to send its headers, to send its body, and to read its answer when it has stopped "
            "reading; 30 by default.",
            min=0.1,
        ),
    ] = 30

    def edge(self) -> "EdgeOptions":
        """Read keys and certificates. Takes the keys out of the environment. Raises InvalidRequest."""
        from ringkv.server.key_files import read_keys
        from ringkv.server.options import EdgeOptions, tls_of

        return EdgeOptions(
            read_keys(self.api_keys or (), os.environ),
            self.share_prefixes,
            self.rate_limit,
            self.allowed_host or (),
            None if self.max_body is None else parse_bytes(self.max_body, "--max-body"),
            self.max_connections,
            self.client_timeout,
            tls_of(self.tls_cert, self.tls_key),
        )
