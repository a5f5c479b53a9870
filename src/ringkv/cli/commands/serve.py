"""ringkv serve: an OpenAI-compatible HTTP server."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.progress import Progress
from ringkv.cli.access import AccessOptions
from ringkv.cli.observing import ObservingOptions
from ringkv.cli.options import ANSWERING_MODEL, ModelNames, ServingOptions
from ringkv.cli.output import print_stderr
from ringkv.cli.roles import RoleOptions
from ringkv.cli.server import ServerOptions
from ringkv.cli.torchrun import Torchrun
from ringkv.llm.show_progress import ProgressDisplay
from ringkv.machine.interrupts import exit_on_sigterm
from ringkv.plan.options import AUTO
from ringkv.weights.gguf.split import set_name

SLOTS = 8
MODELS = [ANSWERING_MODEL]


def serve(
    *,
    model: ModelNames = MODELS,
    engine: ServingOptions,
    server: ServerOptions,
    role: RoleOptions,
    access: AccessOptions,
    observing: ObservingOptions,
) -> None:
    """Serve models over an OpenAI-compatible HTTP API.

    Up to --slots requests of a model run at once; more wait in a queue. Endpoints: /v1/chat/completions,
    /v1/completions, /v1/models, /health, /ready and /metrics. Ctrl-C stops the server.

        ringkv serve smollm2 --slots 8
        ringkv serve qwen2.5-coder-1.5b --kv-compression 4x --port 9000
        ringkv serve smollm2 qwen2.5-coder-1.5b
        torchrun --nnodes 2 --nproc-per-node 1 ... --no-python ringkv serve deepseek-r1 --tensor-parallel 16

    torchrun gives --nnodes, --node-rank, --master-addr and --master-port. One process for each machine starts its
    ranks; with one for each rank, the first of a machine does, and the others end.
    """
    launched = Torchrun.of(os.environ)
    if launched and not launched.is_first:
        return print_stderr(f"ringkv: local rank 0 starts rank {os.environ['RANK']}; this process has nothing to do")
    names = names_of(model, server.served_model_name or ())
    given = engine.filled(slots=SLOTS, prefix_store=AUTO)
    options = (launched.fill(given) if launched else given).compiling_behind
    role.check(len(model), options.nnodes or 1, server.names_address)
    exit_on_sigterm()
    observing.begin()
    edge = access.edge()
    edge.warn_if_open(server.host)
    with observing.progress() as progress:
        progress(0, 0, "loading the server")
        from ringkv.engine.device_memory import free_bytes_elsewhere
        from ringkv.models.config import load_config
        from ringkv.plan.check_options import check_options
        from ringkv.plan.memory import available_bytes
        from ringkv.plan.resolve import Wanted, resolve_all
        from ringkv.residency.catalogue import with_usual_weights
        from ringkv.residency.locate import located, located_drafts
        from ringkv.server.main import RunOptions, WantedModel, run
        from ringkv.server.options import LoadOptions
        from ringkv.weights.read_ahead import read_ahead

        adapted = role.adapted(options)
        check_options(adapted)
        models = [located(name) for name in model]  # before any of them is downloaded
        with_drafts = located_drafts(adapted)
        folders = [download(progress) for download in models]
        adapted = with_drafts(progress)
        wanted = [
            Wanted(folder, load_config(folder), with_usual_weights(name, adapted))
            for name, folder in zip(model, folders, strict=True)
        ]
        configs = resolve_all(wanted, available_bytes(), free_bytes_elsewhere(engine.device))
        if options.node_rank:
            return follow(configs, progress)
        ready = partial(_ready, progress, observing)
        if role.role == "prefill":
            from ringkv.handoff.prefill_worker import run as prefill

            return prefill(configs[0], role.address, progress, ready)
        configs = [role.decoding(config) for config in configs]
        read_ahead(configs[0].model_dir)  # while the engine's process imports torch

        with observing.telemetry() as telemetry:
            run_options = RunOptions(
                origins=server.allow_origin or (),
                log=print_stderr if observing.request_log else None,
                drain_seconds=server.drain_seconds,
                load=LoadOptions(server.max_queue, server.max_queue_tokens, server.request_timeout),
                edge=edge,
                telemetry=telemetry,
            )
            served = [WantedModel(config, aliases) for config, aliases in zip(configs, names, strict=True)]
            run(served, *server.address, progress, ready, run_options)


def follow(configs: Sequence[EngineConfig], progress: Progress) -> None:
    """Run this machine's ranks of an engine that another machine serves."""
    from ringkv.ranks import node
    from ringkv.ranks.build import TIMEOUT

    if len(configs) > 1:
        raise InvalidRequest("several machines serve one model; give one --model", "nnodes")
    nodes = configs[0].nodes
    progress(0, 0, f"following the machine at {nodes.address}:{nodes.port}")
    node.run(configs[0], TIMEOUT)


def _ready(progress: ProgressDisplay, observing: ObservingOptions, text: str) -> None:
    progress.stop()
    observing.show(text)


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
    """Return the last part of a path, of a set of files without its number; other names are returned unchanged."""
    path = Path(model).expanduser()
    return set_name(path.resolve()) if path.exists() else model
