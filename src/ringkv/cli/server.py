"""Options of `ringkv serve` that say where it listens, how its models are named, and what it does under load."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from ringkv.cli.options import option

HOST, PORT = "127.0.0.1", 8000

_server = partial(option, "Server")


@dataclass(frozen=True)
class ServerOptions:
    host: Annotated[
        str, _server("--host", None, "Address to listen on; 0.0.0.0 is all interfaces.", show_default=True)
    ] = HOST
    port: Annotated[
        int | None,
        _server("--port", "PORT", f"Port to listen on, {PORT} by default; 0 picks a free port.", min=0, max=65535),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        _server(
            "--served-model-name",
            "NAME",
            "Model name in the API; repeatable: of one model its aliases, of several one for each. By default the "
            "name of --model.",
        ),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        _server(
            "--allow-origin",
            "URL",
            "CORS: origin that may send requests from a browser, such as http://localhost:3000; repeatable, and * "
            "allows all. None by default.",
        ),
    ] = None
    max_queue: Annotated[
        int | None,
        _server(
            "--max-queue",
            "REQUESTS",
            "Requests that may wait for a slot; more get a 503. By default 8 for each slot, at least 64.",
            min=0,
        ),
    ] = None
    max_queue_tokens: Annotated[
        int | None,
        _server(
            "--max-queue-tokens",
            "TOKENS",
            "Prompt tokens that may wait for their prefill; more get a 503. By default 16 of the longest prompts.",
            min=0,
        ),
    ] = None
    request_timeout: Annotated[
        float | None,
        _server(
            "--request-timeout",
            "SECONDS",
            "Longest time of a request. One that waits that long gets a 503; one that runs ends with the tokens it "
            "has. No limit by default.",
            min=0.001,
        ),
    ] = None
    drain_seconds: Annotated[
        float,
        _server(
            "--drain-seconds",
            None,
            "After SIGTERM or Ctrl-C: seconds in which running requests may finish. A second signal ends them.",
            show_default=True,
            min=0,
        ),
    ] = 30

    @property
    def address(self) -> tuple[str, int]:
        """Where the server listens."""
        return self.host, PORT if self.port is None else self.port

    @property
    def names_address(self) -> bool:
        """Whether a user chose where to listen. Port 0 is any port."""
        return self.host != HOST or bool(self.port)
