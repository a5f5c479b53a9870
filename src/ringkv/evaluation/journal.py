"""Journal: every answer a line, written as it comes: a run that ends early goes on where it was."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ringkv.base.errors import InvalidRequest

NAME = "answers.jsonl"


@dataclass(frozen=True)
class Record:
    """One answer. `score` is None where the request failed, with the reason in `error`."""

    task: str
    place: str  # of the question: inside the prompt, or after its compression
    sample: str
    cell: str
    score: float | None
    prompt: str = ""  # its digest
    text: str = ""
    prompt_tokens: int = 0
    kept: int = 0  # prompt tokens
    output_tokens: int = 0  # drawn, not given
    ring_wraps: int = 0
    finish: str = ""
    error: str | None = None
    facts: Mapping[str, float | str] = field(default_factory=dict)
    logprobs: tuple[float, ...] = ()  # of a question that is scored

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.task, self.place, self.sample, self.cell


class Journal:
    """A folder's answers. `about` says what they are of: two runs share a folder only if they agree on it.

    Raises InvalidRequest when they do not.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.path, self._about = folder / NAME, about
        self.records: list[Record] = []
        if self.path.exists():
            self._go_on(about)

    def add(self, record: Record) -> None:
        self.records.append(record)
        self._write(asdict(record))

    def begin(self, session: Mapping[str, Any]) -> None:
        """Note on what the answers that follow are made. Until then nothing is written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not (self.path.exists() and self.path.stat().st_size):
            self._write({"about": self._about})
        self._write({"session": session})

    @property
    def done(self) -> dict[tuple[str, str, str, str], str]:
        """What has an answer, and the digest of the prompt that it answers."""
        return {record.key: record.prompt for record in self.records}

    def _go_on(self, about: Mapping[str, Any]) -> None:
        """Take what is there; a last line that was cut short goes away."""
        whole = self.path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        lines = kept.decode("utf-8").splitlines()
        said = json.loads(lines[0])["about"] if lines else {}
        if lines and said != json.loads(json.dumps(about)):
            raise InvalidRequest(
                f"{self.path.parent} holds answers of another run: {_differs(said, about)}; "
                "choose another folder with --to"
            )
        if len(kept) < len(whole):
            self.path.write_bytes(kept)
        self.records = list(read(self.path))

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> Iterator[Record]:
    """The records of a journal."""
    with path.open(encoding="utf-8") as file:
        for line in map(json.loads, file):
            if "task" in line:
                yield Record(**(line | {"logprobs": tuple(line["logprobs"])}))


def about(path: Path) -> dict[str, Any]:
    """What a journal is of; `sessions`: on what its answers were made, each once."""
    with path.open(encoding="utf-8") as file:
        said: dict[str, Any] = json.loads(file.readline())["about"]
        sessions = [line["session"] for line in map(json.loads, file) if "session" in line]
    return said | {"sessions": [one for place, one in enumerate(sessions) if one not in sessions[:place]]}


def _differs(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {there.get(name)} there and {here.get(name)} here"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    )
