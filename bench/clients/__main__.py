"""What people point at an OpenAI server already, unmodified, at `ringkv serve`.

    python -m bench.clients                     all of them, and the table in docs/serving.md
    python -m bench.clients --only openai,lm-eval
    python -m bench.clients --page              the table again, from what is kept

The first run installs the clients in an environment of their own under ringkv's cache folder (about 2 GB). What each
did is kept in bench/results/clients.json; one that is run alone replaces its own lines. Exit status 1 where anything
failed.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.clients import guidellm_checks, lm_eval_checks, openai_checks, schemathesis_checks
from bench.clients.check import Check
from bench.clients.surroundings import REQUIREMENTS, Server, serving
from bench.data import DATA
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


def run(model: str, only: Sequence[str], data: Path) -> None:
    """Each client in turn; what it did is kept as soon as it is done."""
    with serving(model, locate(model), *FLAGS) as server:
        for name, checks in clients(server, data).items():
            if name in only:
                found = []
                for check in checks():
                    print(f"{name}: {'passed' if check.ok else 'FAILED'}: {check.what}: {check.said}", flush=True)
                    found.append(check)
                _keep(name, found, model)


def clients(server: Server, data: Path) -> Mapping[str, Callable[[], Iterator[Check]]]:
    return {
        "openai": lambda: openai_checks.checks(server),
        "lm-eval": lambda: lm_eval_checks.checks(server, data / "text" / "wikitext-2_test.txt"),
        "guidellm": lambda: guidellm_checks.checks(server, data / "traces" / "azure2023_conv_first600s.jsonl"),
        "schemathesis": lambda: schemathesis_checks.checks(server),
    }


NAMES = ("openai", "lm-eval", "guidellm", "schemathesis")


def with_table(page: str, kept: Mapping[str, Any]) -> str:
    """The same page with what the clients did between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    versions = dict(line.split("==") for line in (REQUIREMENTS / "clients.txt").read_text().split() if "==" in line)
    rows = [
        (f"{one.client} {versions.get(one.client, versions.get(f'{one.client}[api]', ''))}", one.what, *_result(one))
        for one in _checks(kept)
    ]
    shown = table(("client", "what it did", "", ""), rows).replace("---:", "---")  # words, not figures
    said = " ".join(f"{', '.join(names)}: {about}." for about, names in _by_run(kept["about"]).items())
    return f"{before}{BEGIN}\n{shown}\n\n{said}\n{END}{after}"


def _by_run(about: Mapping[str, str]) -> Mapping[str, list[str]]:
    """The clients that ran alike."""
    found: dict[str, list[str]] = {}
    for name, run in about.items():
        found.setdefault(run, []).append(name)
    return found


def _result(check: Check) -> tuple[str, str]:
    return ("passed" if check.ok else "**failed**", check.said.replace("|", "\\|"))


def _checks(kept: Mapping[str, Any]) -> list[Check]:
    return [Check(**one) for name in NAMES for one in kept["checks"].get(name, ())]


def _keep(name: str, found: Sequence[Check], model: str) -> None:
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {"about": {}, "checks": {}}
    about = f"`ringkv serve --model {model} {' '.join(FLAGS)}`, {machine()}, ringkv {VERSION}, commit {commit()}"
    kept["about"][name], kept["checks"][name] = about, [check._asdict() for check in found]
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(NAMES):
        raise argparse.ArgumentTypeError(f"no client is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--only", type=_names, default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--data", type=Path, default=DATA, help="folder with text/ and traces/")
    parser.add_argument("--page", action="store_true", help="only write the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
