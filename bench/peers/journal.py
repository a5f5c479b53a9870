"""journal: every measurement, a JSON object a line, written as soon as it is made.

{"workload": ...}                         the first line
{"play": "512/1/0/0", "kind": ...}        a measurement, see `analyse`
{"play": "512/1/0/0", "kind": "done"}     its play is over and need not be played again
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Journal:
    """A file for each workload. With `resume`, what is there counts; else the old one is set aside."""

    def __init__(self, folder: Path, name: str, workload: Mapping[str, Any], resume: bool) -> None:
        head = json.dumps({"workload": dict(workload)})
        self.path = folder / f"{name}-{sha256(head.encode()).hexdigest()[:8]}.jsonl"
        self.records: list[Record] = []
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.is_file():
            self._read() if resume else self.path.replace(self.path.with_suffix(".previous"))
        self.path.write_text("".join(f"{line}\n" for line in (head, *map(json.dumps, self.records))))

    def is_done(self, play: str) -> bool:
        return any(record["play"] == play and record["kind"] == "done" for record in self.records)

    def add(self, play: str, kind: str, **fields: Any) -> None:
        record = {"play": play, "kind": kind, **fields}
        self.records.append(record)
        with open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self) -> None:
        """A play that was cut off will be played again, so what it measured is left out."""
        found = [record for line in self.path.read_text().splitlines()[1:] if (record := _parsed(line))]
        over = {record["play"] for record in found if record["kind"] == "done"}
        self.records = [record for record in found if record["play"] in over]


def _parsed(line: str) -> Record | None:
    """None for a line that was cut off."""
    try:
        record: Record = json.loads(line)
        return record
    except json.JSONDecodeError:
        return None
