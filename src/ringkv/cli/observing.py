"""Options of `ringkv serve` that say where its settings come from, and what it reports on stderr and to a collector."""

import io
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from rich.console import Console

from ringkv.base import log_lines
from ringkv.base.checks import check, one_of
from ringkv.base.log_lines import LogFormat, json_line
from ringkv.cli.config_file import use_config
from ringkv.cli.options import SWITCH, option
from ringkv.cli.output import WIDE, print_stderr, print_while_read
from ringkv.llm.show_progress import ProgressDisplay, show_progress

if TYPE_CHECKING:
    from ringkv.server.watch.tracing import Telemetry

log = logging.getLogger(__name__)

_observing = partial(option, "Configuration and logs")


@dataclass(frozen=True)
class ObservingOptions:
    config_file: Annotated[
        Path | None,
        _observing(
            "--config",
            "FILE",
            "TOML file of options, named like the flags: port = 8000. The command line comes first, then variables "
            "such as RINGKV_SERVE_PORT, then the file.",
            envvar="RINGKV_SERVE_CONFIG",
            show_envvar=False,
            callback=use_config,
            is_eager=True,
        ),
    ] = None
    log_format: Annotated[
        str, _observing("--log-format", "FORMAT", "Lines on stderr: text (default), or json, one object per line.")
    ] = "text"
    request_log: Annotated[
        bool,
        _observing(
            "--request-log/--no-request-log",
            SWITCH,
            "Log a line per request to stderr: method, path, status, time and tokens, without its text.",
            show_default=True,
        ),
    ] = True
    otlp_endpoint: Annotated[
        str | None,
        _observing(
            "--otlp-endpoint",
            "URL",
            "OpenTelemetry collector that gets a span of each request, such as http://127.0.0.1:4318. Default: "
            "OTEL_EXPORTER_OTLP_ENDPOINT, or no traces. Needs the extra otel.",
        ),
    ] = None

    def begin(self) -> None:
        """Switch the process's log lines to the format. Raises `InvalidRequest`."""
        check([one_of("log_format", self.log_format, ("text", "json"))])
        if self.is_json:
            log_lines.use_json()

    @property
    def is_json(self) -> bool:
        return self.log_format == "json"

    def progress(self) -> AbstractContextManager[ProgressDisplay]:
        """Return a context that gives a display of progress: a bar or lines on stderr, or log lines."""
        if not self.is_json:
            return show_progress()
        return show_progress(Console(file=_LogFile(), width=WIDE, force_terminal=False, markup=False, highlight=False))

    @property
    def show(self) -> Callable[[str], None]:
        """The function for the server's state: text goes to stdout, JSON to stderr with all else."""
        return _log_status if self.is_json else print_while_read

    @contextmanager
    def telemetry(self) -> "Iterator[Telemetry]":
        """Give what the server needs to describe its requests. Traces that the environment requests are optional."""
        from ringkv.server.watch.log import DESCRIBE
        from ringkv.server.watch.tracing import (
            ENDPOINT,
            NOT_INSTALLED,
            Telemetry,
            is_installed,
            tracer_of,
            wanted_endpoint,
        )

        endpoint = wanted_endpoint(self.otlp_endpoint, os.environ)
        if endpoint and not self.otlp_endpoint and not is_installed():
            log.warning("%s is set, but %s", ENDPOINT, NOT_INSTALLED)
            endpoint = None
        with tracer_of(endpoint) as tracer:
            yield Telemetry(DESCRIBE[cast("LogFormat", self.log_format)], tracer)


class _LogFile(io.StringIO):
    """Writes what is printed to it as log lines."""

    def write(self, text: str) -> int:
        if text.strip():
            print_stderr(json_line("info", text.strip()))
        return len(text)


def _log_status(text: str) -> None:
    first, *others = text.splitlines()
    print_stderr(json_line("info", first, detail=others or None))
