"""GroupFile: the four-bit matrices of a converted GGUF, as NAME.q, NAME.scale and NAME.least (the minimum)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown_names
from ringkv.weights.files import GROUPS

GROUP = 32  # elements of a row that share a scale and a minimum
PARTS = {"q": ("U8", 2), "scale": ("F16", GROUP), "least": ("F16", GROUP)}
"""Each part's dtype, and how many elements of the matrix one of its elements stands for."""
REMEDY = f"delete {GROUPS}, which is optional, or convert the GGUF again"


class GroupFile:
    """Matrices [out, in] of an open safetensors file."""

    def __init__(self, file: Any) -> None:
        self._file, self._names = file, frozenset(file.keys())

    def check(self, matrices: Mapping[str, tuple[int, ...]]) -> None:
        """Raise BadWeights unless every tensor is a part of a matrix, with its dtype and size, and no part is missing.

        `matrices`: shapes of the checkpoint's tensors.
        """
        for name in {part.rpartition(".")[0] for part in self._names}:
            shape = matrices.get(name, ())
            if len(shape) != 2 or shape[1] % GROUP:
                raise BadWeights(
                    f"{GROUPS} has {shown_names([name])}, which is not a matrix of whole groups here; {REMEDY}"
                )
            for part in PARTS:
                self._check_part(f"{name}.{part}", shape)
        if other := [part for part in self._names if part.rpartition(".")[2] not in PARTS]:
            raise BadWeights(f"{GROUPS} has tensors that are no part of a matrix: {shown_names(other)}; {REMEDY}")

    def _check_part(self, name: str, matrix: tuple[int, ...]) -> None:
        dtype, elements = PARTS[name.rpartition(".")[2]]
        expected = dtype, [matrix[0], matrix[1] // elements]
        part = self._file.get_slice(name) if name in self._names else None
        found = (part.get_dtype(), list(part.get_shape())) if part else "nothing"
        if found != expected:
            raise BadWeights(f"{GROUPS} has {found} for {shown_names([name])}, {expected} is needed; {REMEDY}")

    def read(self, name: str, rows: slice, columns: slice) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return q uint8 [rows, in], 0 to 15, scale and minimum float16 [rows, in / 32] of these columns.

        None if there are none, or the columns begin or end inside a group. Raises BadWeights for a scale that is not
        finite.
        """
        if f"{name}.q" not in self._names or any((at or 0) % GROUP for at in (columns.start, columns.stop)):
            return None
        pairs, scale, minimum = (
            self._file.get_slice(f"{name}.{part}")[rows, _divided(columns, elements)]
            for part, (_, elements) in PARTS.items()
        )
        if not (torch.isfinite(scale).all() and torch.isfinite(minimum).all()):
            raise BadWeights(f"{GROUPS} has scales that are not finite in {name}; {REMEDY}")
        return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(1), scale, minimum


def _divided(columns: slice, by: int) -> slice:
    return slice(*(at if at is None else at // by for at in (columns.start, columns.stop)))
