"""What every benchmark prints and keeps: a table, and its figures with machine, versions and commit."""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ringkv.base.version import VERSION

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def keep(
    name: str,
    workload: Mapping[str, Any],
    figures: Sequence[Mapping[str, Any]],
    shown: str,
    folder: Path = RESULTS,
    on: str | None = None,
) -> None:
    """Print the table and write NAME.json and NAME.md under results/. `on`: a machine, if not this processor."""
    ours = {"ringkv": VERSION, "python": platform.python_version()}
    about: dict[str, Any] = {
        "workload": dict(workload),
        "machine": on or machine(),
        "versions": ours | {name: version(name) for name in PACKAGES if find_spec(name)},
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    said = ", ".join(f"{key} {_worded(value)}" for key, value in workload.items())
    versions = ", ".join(f"{key} {value}" for key, value in about["versions"].items())
    caption = f"{said}. {about['machine']}; {versions}; commit {about['commit']}, {about['date']}."
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({**about, "figures": list(figures)}, indent=1) + "\n")
    (folder / f"{name}.md").write_text(f"{shown}\n\n{caption}\n")
    print(f"\n{shown}\n\n{caption}")


def _worded(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def commit() -> str:
    """The commit that is checked out, with a "+" where our source differs from it."""
    return _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "src") else "")


def machine() -> str:
    """Processor, instruction set that torch uses, and threads."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def _git(*words: str) -> str:
    """What git says here; nothing where there is no git or no repository."""
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()
