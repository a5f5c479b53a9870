"""journal: measurements as JSON lines, written at once, so that a later failure loses nothing.

{"workload": ...}                         the first line of a journal of trials
{"trial": "512/1/0/0", "kind": ...}       a measurement
{"trial": "512/1/0/0", "kind": "done"}    the trial is complete and is not repeated
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def append_line(path: Path, record: Record) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_lines(path: Path) -> list[Record]:
    """Return all complete lines. A process that was stopped may leave an incomplete one. No file has no lines."""
    if not path.is_file():
        return []
    return [record for line in path.read_text(encoding="utf-8").splitlines() if (record := _parsed(line))]


class Journal:
    """A file of trials per workload. With `resume` an existing file is continued, else it is renamed to .previous."""

    def __init__(self, folder: Path, name: str, workload: Mapping[str, Any], resume: bool) -> None:
        head = {"workload": dict(workload)}
        self.path = folder / f"{name}-{sha256(json.dumps(head).encode()).hexdigest()[:8]}.jsonl"
        self.records: list[Record] = []
        folder.mkdir(parents=True, exist_ok=True)
        if resume:  # an interrupted trial is repeated
            records = read_lines(self.path)[1:]
            done = {record["trial"] for record in records if record["kind"] == "done"}
            self.records = [record for record in records if record["trial"] in done]
        elif self.path.is_file():
            self.path.replace(self.path.with_suffix(".previous"))
        self.path.write_text("".join(f"{line}\n" for line in map(json.dumps, (head, *self.records))))

    def is_done(self, trial: str) -> bool:
        return any(record["trial"] == trial and record["kind"] == "done" for record in self.records)

    def add(self, trial: str, kind: str, **fields: Any) -> None:
        record = {"trial": trial, "kind": kind, **fields}
        self.records.append(record)
        append_line(self.path, record)


def _parsed(line: str) -> Record | None:
    try:
        record: Record = json.loads(line)
        return record
    except ValueError:
        return None
