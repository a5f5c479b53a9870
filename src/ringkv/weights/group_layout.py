"""group_layout: the parts of matrices in groups of 32 elements of a row, as tensors NAME.PART of a file. No torch.

int4.groups   q: two elements a byte, the earlier in the lower half; scale; least, the minimum
int8.groups   q; scale; multiple, an integer that it is multiplied with for each 16 elements; least and least_multiple,
              if the matrix has minimums
"""

from collections.abc import Mapping
from typing import NamedTuple

from ringkv.weights.files import BYTE_GROUPS, GROUPS

GROUP = 32  # elements of a row that share a scale and a minimum
PARTS = {"q": ("U8", 2), "scale": ("F16", GROUP), "least": ("F16", GROUP)}
LEAST = {"least": ("F16", GROUP), "least_multiple": ("I8", GROUP)}
BYTE_PARTS = {"q": ("I8", 1), "scale": ("F16", GROUP), "multiple": ("I8", GROUP // 2)}


class GroupLayout(NamedTuple):
    """The parts of a matrix in a file: their dtypes, and how many elements of the matrix one of theirs stands for.

    more: parts that a matrix has all of or none.
    """

    file: str
    parts: Mapping[str, tuple[str, int]]
    more: Mapping[str, tuple[str, int]]

    @property
    def remedy(self) -> str:
        return f"delete {self.file}, which is optional, or convert the GGUF again"


INT4, INT8 = GroupLayout(GROUPS, PARTS, {}), GroupLayout(BYTE_GROUPS, BYTE_PARTS, LEAST)
