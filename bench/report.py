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

from ringkv.base import processor
from ringkv.base.version import VERSION

RESULTS = Path(__file__).parent / "results"
UNITS = ("amx_bf16", "avx512_bf16")  # what multiplies bfloat16, the best first
MAKERS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
FIRST, CUDA = "intel-amx_bf16", "cuda"  # folders: of the processor that the README shows, and of GPUs
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
    folder: Path | None = None,
    on: str | None = None,
) -> None:
    """Print the table and write NAME.json and NAME.md to `folder`, the one of `results` if none is given.

    `on` is a machine, if not this processor.
    """
    folder = folder or results()
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
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({**about, "figures": list(figures)}, indent=1) + "\n")
    (folder / f"{name}.md").write_text(f"{shown}\n\n{caption}\n")
    print(f"\n{shown}\n\n{caption}")


def _worded(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def commit() -> str:
    """The commit that is checked out, with a "+" where our source or its benchmarks differ from it."""
    measured = ("src", "bench/*.py")
    return _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", *measured) else "")


def results() -> Path:
    """Where figures of this kind of processor are kept: its maker, and the best of `UNITS` that it has."""
    maker = MAKERS.get(processor.described().get("vendor_id", ""), "other")
    unit = next((unit for unit in UNITS if unit in processor.instructions()), "plain")
    return RESULTS / f"{maker}-{unit}"


def machine() -> str:
    """Processor, its family where its maker gives one name to several, what multiplies there, and threads."""
    family = f" (family {processor.described()['cpu family']})" if "cpu family" in processor.described() else ""
    unit = next((unit for unit in UNITS if unit in processor.instructions()), torch.backends.cpu.get_cpu_capability())
    return f"{processor.name()}{family}, {unit}, {torch.get_num_threads()} threads"


def _git(*words: str) -> str:
    """What git says here; nothing where there is no git or no repository."""
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()
