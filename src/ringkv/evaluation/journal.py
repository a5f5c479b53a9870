"""Journal: a file with one line per answer, written as answers finish, so that a stopped run can resume."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ringkv.base.errors import InvalidRequest

NAME = "answers.jsonl"


@dataclass(frozen=True)
class Record:
    """One answer. `score` is None if the request failed; `error` has the reason."""

    task: str
    place: str  # of the question, a `sample.Place`
    sample: str
    cell: str
    score: float | None
    prompt: str = ""  # digest of the prompt's tokens
    text: str = ""
    prompt_tokens: int = 0
    kept: int = 0  # prompt tokens in the cache after prefill
    output_tokens: int = 0  # sampled, without forced tokens
    ring_wraps: int = 0
    finish: str = ""
    error: str | None = None
    facts: Mapping[str, float | str] = field(default_factory=dict)
    entries: int = 0  # that its slot may hold; 0 in older journals
    logprobs: tuple[float, ...] = ()  # of a question that is scored

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.task, self.place, self.sample, self.cell


class Journal:
    """The answers in a folder. `about` identifies the model and settings that all answers share.

    Raises InvalidRequest if the folder has answers with another `about`.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.path, self._about = folder / NAME, about
        self.records: list[Record] = []
        if self.path.exists():
            self._resume(about)

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.note(asdict(record))

    def note(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def begin(self, session: Mapping[str, Any]) -> None:
        """Record the machine and version of the answers that follow. Nothing is written before this call."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not (self.path.exists() and self.path.stat().st_size):
            self.note({"about": self._about})
        self.note({"session": session})

    @property
    def done(self) -> dict[tuple[str, str, str, str], str]:
        """The digest of the prompt of each answer, by the answer's key."""
        return {record.key: record.prompt for record in self.records}

    def _resume(self, about: Mapping[str, Any]) -> None:
        """Read the answers in the file, and remove a last line that was cut short."""
        data = self.path.read_bytes()
        complete = data[: data.rfind(b"\n") + 1]
        lines = complete.decode("utf-8").splitlines()
        stored = json.loads(lines[0])["about"] if lines else {}
        if lines and stored != json.loads(json.dumps(about)):
            raise InvalidRequest(
                f"{self.path.parent} has answers of another run: {_differences(stored, about)}; "
                "choose another folder with --to"
            )
        if len(complete) < len(data):
            self.path.write_bytes(complete)
        self.records = list(read(self.path))


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a journal."""
    with path.open(encoding="utf-8") as file:
        for line in map(json.loads, file):
            if "task" in line:
                yield Record(**(line | {"logprobs": tuple(line["logprobs"])}))


def about(path: Path) -> dict[str, Any]:
    """The `about` of a journal, with the distinct machines and versions of its answers under `sessions`."""
    with path.open(encoding="utf-8") as file:
        stored: dict[str, Any] = json.loads(file.readline())["about"]
        sessions = [line["session"] for line in map(json.loads, file) if "session" in line]
    return stored | {"sessions": [session for place, session in enumerate(sessions) if session not in sessions[:place]]}


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {there.get(name)} there and {here.get(name)} here"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    )
