"""What people point at an OpenAI server already, unmodified, at `ringkv serve`.

    python -m bench.clients                     all of them, and the table in docs/serving.md
    python -m bench.clients --only openai,lm-eval
    python -m bench.clients --page              the table again, from what is kept

The first run installs the clients in environments of their own under ringkv's cache folder (about 4 GB). What each
did is kept in bench/results/clients.json; one that is run alone replaces its own lines. Exit status 1 where anything
failed.
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.clients import (
    aiperf_checks,
    guidellm_checks,
    lm_eval_checks,
    openai_checks,
    schemathesis_checks,
    vllm_checks,
)
from bench.clients.check import Check
from bench.clients.surroundings import REQUIREMENTS, Server, serving, with_template
from bench.data import DATA
from bench.peers.install import REQUIREMENTS as PEERS
from bench.report import RESULTS, commit, machine, table
from ringkv.base.version import VERSION
from ringkv.residency.locate import locate

KEPT = RESULTS / "clients.json"
PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
BEGIN, END = "<!-- clients:begin -->", "<!-- clients:end -->"
FLAGS = ("--slots", "8", "--kv-budget", "2048")


def main() -> None:
    asked = _arguments()
    if not asked.page:
        run(asked.model, asked.only, asked.data)
    kept = json.loads(KEPT.read_text())
    PAGE.write_text(with_table(PAGE.read_text(), kept))
    sys.exit(any(not check.ok for check in _checks(kept)))


def run(model: str, only: Collection[str], data: Path) -> None:
    """Each client in turn, those of one template at one server; what it did is kept as soon as it is done."""
    asked = {name: CLIENTS[name] for name in CLIENTS if name in only}
    for template in dict.fromkeys(client.template for client in asked.values()):
        with _served(model, template) as server:
            for name, client in asked.items():
                if client.template == template:
                    _keep(name, _all(name, client.checks(server, data)), _about(model, template))


def _served(model: str, template: str) -> AbstractContextManager[Server]:
    return serving(model, locate(model), *FLAGS) if not template else _as(model, template)


@contextmanager
def _as(model: str, template: str) -> Iterator[Server]:
    with with_template(locate(model), template) as folder, serving(str(folder), folder, *FLAGS) as server:
        yield server._replace(model=template)


def _all(name: str, checks: Iterator[Check]) -> list[Check]:
    found = []
    for check in checks:
        print(f"{name}: {'passed' if check.ok else 'FAILED'}: {check.what}: {check.said}", flush=True)
        found.append(check)
    return found


class Client(NamedTuple):
    """checks: what it does to a server, with a folder of real data; template: of ours, in place of the model's own."""

    checks: Callable[[Server, Path], Iterator[Check]]
    template: str = ""


CLIENTS: Mapping[str, Client] = {
    "openai": Client(lambda server, _: openai_checks.checks(server, "usual")),
    "openai-llama-3": Client(lambda server, _: openai_checks.checks(server, "llama_3"), "llama_3"),
    "openai-thinking": Client(lambda server, _: openai_checks.checks(server, "thinking"), "thinking"),
    "lm-eval": Client(lambda server, data: lm_eval_checks.checks(server, data / "text" / "wikitext-2_test.txt")),
    "guidellm": Client(
        lambda server, data: guidellm_checks.checks(server, data / "traces" / "azure2023_conv_first600s.jsonl")
    ),
    "aiperf": Client(lambda server, _: aiperf_checks.checks(server)),
    "vllm": Client(lambda server, _: vllm_checks.checks(server)),
    "schemathesis": Client(lambda server, _: schemathesis_checks.checks(server)),
}


def with_table(page: str, kept: Mapping[str, Any]) -> str:
    """The same page with what the clients did between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    versions = _versions()
    rows = [(f"{one.client} {versions.get(one.client, '')}", one.what, *_result(one)) for one in _checks(kept)]
    shown = table(("client", "what it did", "", ""), rows).replace("---:", "---")  # words, not figures
    said = " ".join(f"{', '.join(names)}: {about}." for about, names in _by_run(kept["about"]).items())
    return f"{before}{BEGIN}\n{shown}\n\n{said}\n{END}{after}"


def _versions() -> Mapping[str, str]:
    """Of the clients that are installed."""
    files = (*sorted(REQUIREMENTS.glob("*.txt")), PEERS / "vllm.txt")
    pinned = (line.split("==") for file in files for line in file.read_text().split() if "==" in line)
    return {package.partition("[")[0]: version for package, version in pinned}


def _by_run(about: Mapping[str, str]) -> Mapping[str, list[str]]:
    """The clients that ran alike."""
    found: dict[str, list[str]] = {}
    for name, run in about.items():
        found.setdefault(run, []).append(name)
    return found


def _result(check: Check) -> tuple[str, str]:
    return ("passed" if check.ok else "**failed**", check.said.replace("|", "\\|"))


def _checks(kept: Mapping[str, Any]) -> list[Check]:
    return [Check(**one) for name in CLIENTS for one in kept["checks"].get(name, ())]


def _about(model: str, template: str) -> str:
    told = f" under `bench/clients/templates/{template}.jinja`" if template else ""
    command = f"`ringkv serve --model {model} {' '.join(FLAGS)}`"
    return f"{command}{told}, {machine()}, ringkv {VERSION}, commit {commit()}"


def _keep(name: str, found: Sequence[Check], about: str) -> None:
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {"about": {}, "checks": {}}
    kept["about"][name], kept["checks"][name] = about, [check._asdict() for check in found]
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def _names(text: str) -> set[str]:
    names = set(text.split(","))
    if unknown := names - CLIENTS.keys():
        raise argparse.ArgumentTypeError(f"no client is called {', '.join(unknown)}; there are {', '.join(CLIENTS)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--only", type=_names, default=set(CLIENTS), help=", ".join(CLIENTS))
    parser.add_argument("--data", type=Path, default=DATA, help="folder with text/ and traces/")
    parser.add_argument("--page", action="store_true", help="only write the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
