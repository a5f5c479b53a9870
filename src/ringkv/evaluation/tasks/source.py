"""Source: what samples are made from: how many, how long, from which data, with which tokenizer."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringkv.evaluation.sample import CannotMake, Sample


@dataclass(frozen=True)
class Source:
    """`tokens` counts those of a sample's whole prompt; `count` samples at each of `lengths`, in tokens, or of a file.

    `data`: the folder that `--data` names. Raises CannotMake where a task needs it and it is not there.
    """

    lengths: Sequence[int]
    count: int
    seed: int
    data: Path | None
    tokens: Callable[[Sample], int]

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def lines(self, *names: str) -> Iterator[dict[str, Any]]:
        """The JSON lines of a file of the data folder."""
        with self.file(*names).open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def text(self, *names: str) -> str:
        return self.file(*names).read_text(encoding="utf-8")

    def file(self, *names: str) -> Path:
        place = "/".join(names)
        if self.data is None:
            raise CannotMake(f"it reads {place}; name the folder that has it with --data", "data")
        if not self.data.joinpath(*names).is_file():
            raise CannotMake(f"{self.data} has no {place}; get it, or leave the task out", "data")
        return self.data.joinpath(*names)
