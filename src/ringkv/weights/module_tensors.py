"""ModuleTensors: the tensors of one quantised linear layer in an open safetensors checkpoint."""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown_names

SCALES = ("F16", "BF16", "F32")  # dtypes of scales


class ModuleTensors:
    """Tensors `module`.SUFFIX by their suffixes, such as "qweight"."""

    def __init__(self, files: Mapping[str, Any], module: str) -> None:
        self._files, self.module = files, module

    def has(self, suffix: str) -> bool:
        return f"{self.module}.{suffix}" in self._files

    def shape(self, suffix: str, dtypes: Collection[str], dimensions: int = 2) -> tuple[int, ...]:
        """Return a tensor's shape. Raises BadWeights if it is missing or has other dtypes or dimensions."""
        if not self.has(suffix):
            raise self.wrong(f"no {suffix}")
        tensor = self._slice(suffix)
        shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
        if dtype not in dtypes or len(shape) != dimensions or not all(shape):
            raise self.wrong(f"{suffix} {dtype} {list(shape)}")
        return shape

    def dtype(self, suffix: str) -> str:
        return str(self._slice(suffix).get_dtype())

    def read(self, suffix: str, *spans: range) -> Tensor:
        """Copy these places along each dimension of a tensor, or all of it."""
        found: Tensor = self._slice(suffix)[tuple(slice(one.start, one.stop) for one in spans) or slice(None)]
        return found

    def wrong(self, fault: str) -> BadWeights:
        """Return the error for tensors that do not belong together."""
        return BadWeights(f"the quantised layer {shown_names([self.module])} has {fault}; fetch the checkpoint again")

    def _slice(self, suffix: str) -> Any:
        name = f"{self.module}.{suffix}"
        return self._files[name].get_slice(name)
