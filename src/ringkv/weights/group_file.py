"""GroupFile: matrices of a converted GGUF in groups of 32 elements of a row, stored as their parts (`group_layout`)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown_names
from ringkv.kernels.quantize import Int4Groups
from ringkv.weights.group_layout import GROUP, GroupLayout


class GroupFile:
    """Matrices [out, in] of an open safetensors file."""

    def __init__(self, file: Any, layout: GroupLayout) -> None:
        self._file, self._names, self._layout = file, frozenset(file.keys()), layout

    def check(self, matrices: Mapping[str, tuple[int, ...]]) -> None:
        """Raise BadWeights unless every tensor is a part of a matrix, with its dtype and size, and no part is missing.

        `matrices`: shapes of the checkpoint's tensors.
        """
        file, remedy = self._layout.file, self._layout.remedy
        for name in {part.rpartition(".")[0] for part in self._names}:
            shape = matrices.get(name, ())
            if len(shape) != 2 or shape[1] % GROUP:
                raise BadWeights(
                    f"{file} has {shown_names([name])}, which is not a matrix of whole groups here; {remedy}"
                )
            for part, (dtype, elements) in self._parts(name).items():
                expected = dtype, [shape[0], shape[1] // elements]
                tensor = self._file.get_slice(f"{name}.{part}") if f"{name}.{part}" in self._names else None
                stored = (tensor.get_dtype(), list(tensor.get_shape())) if tensor else "nothing"
                if stored != expected:
                    raise BadWeights(
                        f"{file} has {stored} for {shown_names([f'{name}.{part}'])}, {expected} is needed; {remedy}"
                    )
        known = {**self._layout.parts, **self._layout.more}
        if other := [part for part in self._names if part.rpartition(".")[2] not in known]:
            raise BadWeights(f"{file} has tensors that are no part of a matrix: {shown_names(other)}; {remedy}")

    def has(self, name: str) -> bool:
        return f"{name}.q" in self._names

    def has_minimums(self, name: str) -> bool:
        """Return whether a matrix has the parts that are not in every matrix."""
        return any(f"{name}.{part}" in self._names for part in self._layout.more)

    def _parts(self, name: str) -> Mapping[str, tuple[str, int]]:
        return {**self._layout.parts, **(self._layout.more if self.has_minimums(name) else {})}

    def read(self, name: str, rows: slice, columns: slice) -> list[Tensor] | None:
        """Return these rows and columns of a matrix's parts.

        None if there are none, or the columns begin or end inside a group. Raises BadWeights for a scale that is not
        finite.
        """
        if not self.has(name) or divided(columns, GROUP) is None:
            return None
        parts = [
            self._file.get_slice(f"{name}.{part}")[rows, divided(columns, elements)]
            for part, (_, elements) in self._parts(name).items()
        ]
        if not all(torch.isfinite(part).all() for part in parts if part.dtype == torch.float16):
            raise BadWeights(f"{self._layout.file} has scales that are not finite in {name}; {self._layout.remedy}")
        return parts


def int4_groups(pairs: Tensor, scale: Tensor, minimum: Tensor) -> Int4Groups:
    """Return a matrix of its parts in an int4 file, whose bytes have two elements each."""
    return Int4Groups(torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(1), scale, minimum)


def divided(columns: slice, by: int) -> slice | None:
    """Return which groups of `by` columns these are; None if they begin or end inside of one."""
    ends = columns.start, columns.stop
    return None if any((end or 0) % by for end in ends) else slice(*(end if end is None else end // by for end in ends))
