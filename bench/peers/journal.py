"""journal: every measurement, a JSON object a line, written as soon as it is made.

{"workload": ...}                         the first line
{"play": "512/1/0/0", "kind": ...}        a measurement, see `analyse`
{"play": "512/1/0/0", "kind": "done"}     its play is over and need not be played again
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class OtherWorkload(Exception):
    """The journal holds measurements of something else."""


class Journal:
    """Appends to a file. With `resume`, what is there counts; else it begins afresh."""

    def __init__(self, path: Path, workload: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self.records: list[Record] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.is_file():
            self._read(dict(workload))
        else:
            path.write_text(json.dumps({"workload": dict(workload)}) + "\n")

    def is_done(self, play: str) -> bool:
        return any(record["play"] == play and record["kind"] == "done" for record in self.records)

    def add(self, play: str, kind: str, **fields: Any) -> None:
        record = {"play": play, "kind": kind, **fields}
        self.records.append(record)
        with open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self, workload: dict[str, Any]) -> None:
        """Raises OtherWorkload. A play that was cut off will be played again, so what it measured is left out."""
        head, *lines = self.path.read_text().splitlines()
        if json.loads(head)["workload"] != json.loads(json.dumps(workload)):
            raise OtherWorkload(f"{self.path} holds another workload; run without --resume, or with its arguments")
        found = [record for line in lines if (record := _parsed(line))]
        over = {record["play"] for record in found if record["kind"] == "done"}
        self.records = [record for record in found if record["play"] in over]
        kept = [{"workload": workload}, *self.records]
        self.path.write_text("".join(json.dumps(record) + "\n" for record in kept))


def _parsed(line: str) -> Record | None:
    """None for a line that was cut off."""
    try:
        record: Record = json.loads(line)
        return record
    except json.JSONDecodeError:
        return None
