"""gguf_gemma4_experts: experts of Gemma 4, which Hugging Face layout has as stacks [experts, rows, columns]."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_source import Source, stored
from ringkv.weights.gguf_stacks import STACKS, stack_shape
from ringkv.weights.safetensors_writer import TensorSpec

FUSED = "ffn_gate_up_exps"


def parallel_experts(gguf: GGUF, layer: str) -> Iterator[tuple[str, Source]]:
    """Yield the stacks of a layer's experts. Gates and ups may be two stacks. Raises BadWeights."""
    fused = {**STACKS, "gate_up_proj": (FUSED,)} if gguf.has(f"{layer}{FUSED}.weight") else STACKS
    for ours, stacks in fused.items():
        names = tuple(f"{layer}{stack}.weight" for stack in stacks)
        if all(map(gguf.has, names)):
            count, rows, columns = stack_shape(gguf, names, 3)
            yield f"experts.{ours}", Stacked(names, (count, rows * len(names), columns))


@dataclass(frozen=True)
class Stacked:
    """Stacks [experts, rows, columns] as one, [experts, all rows, columns], in the order of `names`."""

    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape)

    def blocks(self, gguf: GGUF) -> Iterator[npt.NDArray[Any]]:
        for expert in range(self.shape[0]):
            for name in self.names:
                yield from map(stored, gguf.rows(name, expert=expert))
