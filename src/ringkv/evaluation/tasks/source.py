"""Source: the inputs of sample generation: count, lengths, seed, data folder and token counter."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import CannotMake, Sample, not_empty


@dataclass(frozen=True)
class Source:
    """lengths: in tokens. count: samples per length, or per file. count_tokens: tokens of a sample's whole prompt.

    data: the folder of `--data`. prompts: a file of the user's own prompts. Raises CannotMake if a task needs a file
    that is missing.
    """

    lengths: Sequence[int]
    count: int
    seed: int
    data: Path | None
    count_tokens: Callable[[Sample], int]
    prompts: Path | None = None

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def lines(self, *names: str) -> Iterator[dict[str, Any]]:
        """Yield the JSON lines of a file in the data folder."""
        with self.file(*names).open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def prompt_lines(self) -> Iterator[str]:
        """Yield the lines of the user's own prompts that are not empty. Raises InvalidRequest if all are."""
        if self.prompts is None:
            raise CannotMake("it reads prompts of yours; give their file with --prompts", "prompts")
        if not self.prompts.is_file():
            raise CannotMake(f"there is no file {self.prompts}; give one with a JSON object on each line", "prompts")
        with self.prompts.open(encoding="utf-8") as file:
            empty = InvalidRequest(f"{self.prompts} has no prompts; write a JSON object on each line", "prompts")
            yield from not_empty((line for line in file if line.strip()), empty)

    def text(self, *names: str) -> str:
        return self.file(*names).read_text(encoding="utf-8")

    def file(self, *names: str) -> Path:
        place = "/".join(names)
        if self.data is None:
            raise CannotMake(f"it reads {place}; give the folder that has it with --data", "data")
        if not self.data.joinpath(*names).is_file():
            raise CannotMake(f"{self.data} has no {place}; get it, or leave the task out", "data")
        return self.data.joinpath(*names)
