"""ringkv serve: an OpenAI-compatible HTTP server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.cli.access import AccessOptions
from ringkv.cli.observing import ObservingOptions
from ringkv.cli.options import SWITCH, ServingOptions
from ringkv.cli.output import print_stderr
from ringkv.machine.interrupts import exit_on_sigterm

SLOTS = 8
SERVER = "Server"


def serve(
    *,
    engine: ServingOptions,
    access: AccessOptions,
    observing: ObservingOptions,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is all interfaces.", rich_help_panel=SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="Port to listen on; 0 picks a free port.", rich_help_panel=SERVER)
    ] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name",
            metavar="NAME",
            help="Model name in the API; repeatable: of one model its aliases, of several one for each. By default the "
            "name of --model.",
            rich_help_panel=SERVER,
            show_default=False,
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="URL",
            help="CORS: origin that may send requests from a browser, such as http://localhost:3000; repeatable, and * "
            "allows all. None by default.",
            rich_help_panel=SERVER,
            show_default=False,
        ),
    ] = None,
    request_log: Annotated[
        bool,
        typer.Option(
            "--request-log/--no-request-log",
            metavar=SWITCH,
            help="Log a line per request to stderr: method, path, status, time and tokens, without its text.",
            rich_help_panel=SERVER,
        ),
    ] = True,
    max_queue: Annotated[
        int | None,
        typer.Option(
            "--max-queue",
            metavar="REQUESTS",
            min=0,
            help="Requests that may wait for a slot; more get a 503. By default 8 for each slot, at least 64.",
            rich_help_panel=SERVER,
            show_default=False,
        ),
    ] = None,
    max_queue_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-queue-tokens",
            metavar="TOKENS",
            min=0,
            help="Prompt tokens that may wait for their prefill; more get a 503. By default 16 of the longest prompts.",
            rich_help_panel=SERVER,
            show_default=False,
        ),
    ] = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(
            "--request-timeout",
            metavar="SECONDS",
            min=0.001,
            help="Longest time of a request. One that waits that long gets a 503; one that runs ends with the tokens "
            "it has. No limit by default.",
            rich_help_panel=SERVER,
            show_default=False,
        ),
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            "--drain-seconds",
            min=0,
            help="After SIGTERM or Ctrl-C: seconds in which running requests may finish. A second signal ends them.",
            rich_help_panel=SERVER,
        ),
    ] = 30,
) -> None:
    """Serve models over an OpenAI-compatible HTTP API.

    Up to --slots requests of a model run at once; more wait in a queue. Endpoints: /v1/chat/completions,
    /v1/completions, /v1/models, /health, /ready and /metrics. Ctrl-C stops the server.

        ringkv serve --model smollm2 --slots 8
        ringkv serve --model qwen2.5-coder-1.5b --kv-compression 4x --port 9000
        ringkv serve --model smollm2 --model qwen2.5-coder-1.5b
    """
    names = names_of(engine.model, served_model_name or ())
    exit_on_sigterm()
    observing.begin()
    edge = access.edge()
    edge.warn_if_open(host)
    with observing.progress() as progress:
        progress(0, 0, "loading the server")
        from ringkv.engine.device_memory import free_bytes_elsewhere
        from ringkv.models.config import load_config
        from ringkv.plan.memory import available_bytes
        from ringkv.plan.resolve import Wanted, resolve_all
        from ringkv.residency.locate import locate
        from ringkv.server.admission import LoadOptions
        from ringkv.server.main import WantedModel, run
        from ringkv.weights.read_ahead import read_ahead

        folders = [locate(model, progress) for model in engine.model]
        wanted = [Wanted(folder, load_config(folder), engine.options(SLOTS)) for folder in folders]
        configs = resolve_all(wanted, available_bytes(), free_bytes_elsewhere(engine.device))
        read_ahead(configs[0].model_dir)  # while the engine's process imports torch

        def ready(text: str) -> None:
            progress.stop()
            observing.show(text)

        with observing.telemetry() as telemetry:
            run(
                [WantedModel(config, own) for config, own in zip(configs, names, strict=True)],
                host,
                port,
                progress,
                ready,
                origins=allow_origin or (),
                log=print_stderr if request_log else None,
                drain_seconds=drain_seconds,
                edge=edge,
                telemetry=telemetry,
                load=LoadOptions(max_queue, max_queue_tokens, request_timeout),
            )


def names_of(models: Sequence[str], given: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each model's names. Raises InvalidRequest if several models are not given one name each."""
    if not given:
        return [(_name(model),) for model in models]
    if len(models) == 1:
        return [tuple(given)]
    if len(given) != len(models):
        raise InvalidRequest(
            f"{len(models)} models are served and {len(given)} names are given; give one --served-model-name for each "
            "--model, in the same order, or none",
            "served_model_name",
        )
    return [(name,) for name in given]


def _name(model: str) -> str:
    """Return the last part of a path; a catalogue name or a hub id is returned unchanged."""
    path = Path(model).expanduser()
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model
