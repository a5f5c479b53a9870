"""Run unmodified clients of OpenAI servers against `ringkv serve`.

    python -m bench.clients                     all of them
    python -m bench.clients --only openai,lm-eval
    python -m bench.report                      write the counts into docs/serving.md

The first run installs the clients in their own environments under ringkv's cache folder (about 4 GB). Every check is
appended to bench/results/measurements.jsonl. The exit status is 1 if any check failed.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from bench.arguments import command_line, names_of, report
from bench.clients import checks, lm_eval
from bench.clients.checks import Check
from bench.clients.surroundings import REQUIREMENTS, Server, with_template
from bench.data import DATA
from bench.peers.install import REQUIREMENTS as PEERS
from bench.results import TABLE, append, provenance, rows
from bench.serving import serving
from bench.traffic.traces import FILES
from ringkv.residency.locate import locate

SLOTS, BUDGET = 8, 2048
FLAGS = ("--slots", f"{SLOTS}", "--kv-budget", f"{BUDGET}")


def main() -> None:
    parser = command_line(__doc__, model="smollm2")
    parser.add_argument("--only", type=names_of(CLIENTS, "client"), default=tuple(CLIENTS), help=", ".join(CLIENTS))
    parser.add_argument("--data", type=Path, default=DATA, help="folder with text/ and traces/")
    args = parser.parse_args()
    sys.exit(not run(args.model, args.only, args.data))


def run(model: str, only: Collection[str], data: Path) -> bool:
    """Run the clients, one server per template, and append each client's checks. Returns whether all passed."""
    clients = {name: CLIENTS[name] for name in CLIENTS if name in only}
    passed = True
    for template in dict.fromkeys(client.template for client in clients.values()):
        with _server(model, template) as server:
            for name, client in clients.items():
                if client.template == template:
                    done = _run_checks(name, client.run(server, data))
                    _keep(name, model, template, done)
                    passed &= all(check.ok for check in done)
    return passed


@contextmanager
def _server(model: str, template: str) -> Iterator[Server]:
    folder = locate(model)
    renamed = with_template(folder, template) if template else nullcontext(folder)
    with renamed as served, serving("--model", served if template else model, *FLAGS) as server:
        yield Server(server.url, template or model, served)


def _run_checks(name: str, running: Iterator[Check]) -> list[Check]:
    done = []
    for check in running:
        report(f"{name}: {'passed' if check.ok else 'FAILED'}: {check.what}: {check.detail}")
        done.append(check)
    return done


class Client(NamedTuple):
    """run: its checks against a server with a folder of real data. template: one of ours that replaces the model's."""

    run: Callable[[Server, Path], Iterator[Check]]
    template: str = ""


CLIENTS: Mapping[str, Client] = {
    "openai": Client(lambda server, _: checks.openai(server, "usual")),
    "openai-llama-3": Client(lambda server, _: checks.openai(server, "llama_3"), "llama_3"),
    "openai-thinking": Client(lambda server, _: checks.openai(server, "thinking"), "thinking"),
    "lm-eval": Client(lambda server, data: lm_eval.checks(server, data / "text" / "wikitext-2_test.txt")),
    "guidellm": Client(lambda server, data: checks.guidellm(server, data / "traces" / FILES["azure-conv"])),
    "aiperf": Client(lambda server, _: checks.aiperf(server)),
    "vllm": Client(lambda server, _: checks.vllm(server)),
    "schemathesis": Client(lambda server, _: checks.schemathesis(server)),
}


def _keep(name: str, model: str, template: str, done: Sequence[Check], path: Path = TABLE) -> None:
    versions = _versions()
    figures = [
        {"check": what, "passed": int(ok), "said": detail, "package": f"{client} {versions.get(client, '')}"}
        for client, what, ok, detail in done
    ]
    workload = {"client": name, "model": model, "slots": SLOTS, "budget": BUDGET, "template": template}
    append(path, rows("clients", workload, figures, provenance()))


def _versions() -> Mapping[str, str]:
    """Return the pinned versions of all clients, by package."""
    files = (*sorted(REQUIREMENTS.glob("*.txt")), PEERS / "vllm.txt")
    pinned = (line.split("==") for file in files for line in file.read_text().split() if "==" in line)
    return {package.partition("[")[0]: version for package, version in pinned}


if __name__ == "__main__":
    main()
