"""journal: every measurement as one JSON line, written at once.

{"workload": ...}                         the first line
{"trial": "512/1/0/0", "kind": ...}       a measurement, see `analyse`
{"trial": "512/1/0/0", "kind": "done"}    the trial is complete and is not repeated
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

TrialRecord = dict[str, Any]


class Journal:
    """A file per workload. With `resume` an existing file is continued; otherwise it is renamed to .previous."""

    def __init__(self, folder: Path, name: str, workload: Mapping[str, Any], resume: bool) -> None:
        head = json.dumps({"workload": dict(workload)})
        self.path = folder / f"{name}-{sha256(head.encode()).hexdigest()[:8]}.jsonl"
        self.records: list[TrialRecord] = []
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.is_file():
            self._read() if resume else self.path.replace(self.path.with_suffix(".previous"))
        self.path.write_text("".join(f"{line}\n" for line in (head, *map(json.dumps, self.records))))

    def is_done(self, trial: str) -> bool:
        return any(record["trial"] == trial and record["kind"] == "done" for record in self.records)

    def add(self, trial: str, kind: str, **fields: Any) -> None:
        record = {"trial": trial, "kind": kind, **fields}
        self.records.append(record)
        with open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self) -> None:
        """Read the records of complete trials; an interrupted trial is repeated."""
        found = [record for line in self.path.read_text().splitlines()[1:] if (record := _parsed(line))]
        done = {record["trial"] for record in found if record["kind"] == "done"}
        self.records = [record for record in found if record["trial"] in done]


def _parsed(line: str) -> TrialRecord | None:
    """Parse a line; None if it is incomplete."""
    try:
        record: TrialRecord = json.loads(line)
        return record
    except json.JSONDecodeError:
        return None
