"""journal: one JSON line per figure, written at once, so that a later failure loses nothing."""

import json
from pathlib import Path
from typing import Any

Figure = dict[str, Any]


class DeviceJournal:
    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, **figure: Any) -> None:
        line = json.dumps({"kind": kind, **figure})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(f"  {line}", flush=True)

    def read(self) -> list[Figure]:
        """Return all complete lines; a stopped part may leave an incomplete one."""
        if not self.path.exists():
            return []
        return [one for line in self.path.read_text(encoding="utf-8").splitlines() if (one := _parsed(line))]

    def of(self, kind: str) -> list[Figure]:
        return [figure for figure in self.read() if figure["kind"] == kind]


def _parsed(line: str) -> Figure | None:
    try:
        found: Figure = json.loads(line)
    except ValueError:
        return None
    return found
