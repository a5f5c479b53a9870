"""Checkpoint: a memory-mapped safetensors checkpoint, single or sharded.

Only safetensors are read: pickles can run code, so ringkv never opens one.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.weights.files import GROUPS, INDEX, SINGLE

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FLOATS = ("F64", "F32", "F16", "BF16")
SHOWN = 5  # names in an error


def open_checkpoint(directory: Path) -> "Checkpoint":
    """Map `model.safetensors`, or the shards that `model.safetensors.index.json` names.

    Raises BadWeights if there is none, a shard is missing, or a file is truncated or corrupt.
    """
    if (directory / INDEX).is_file():
        return Checkpoint(_open_shards(directory))
    if not (directory / SINGLE).is_file():
        raise BadWeights(_nothing_to_open(directory))
    file = _open(directory / SINGLE)
    groups = _open(directory / GROUPS) if (directory / GROUPS).is_file() else None
    return Checkpoint(dict.fromkeys(file.keys(), file), groups)


class Checkpoint:
    """Named tensors on disk. No tensor is read before `read_into`."""

    def __init__(self, files: Mapping[str, Any], groups: Any = None) -> None:
        self._files, self._groups = files, groups  # tensor name -> open safetensors file; the open file of int4 groups

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def check(self, expected: Mapping[str, tuple[int, ...]], ignorable: Collection[str] = ()) -> None:
        """Raise BadWeights that names missing, unexpected and misshapen tensors.

        `ignorable`: names, or patterns such as `*.rotary_emb.inv_freq`, that may exist and are not loaded.
        """
        found = self.shapes()
        missing = [name for name in expected if name not in found]
        extra = [
            name
            for name in found
            if name not in expected and not any(fnmatchcase(name, pattern) for pattern in ignorable)
        ]
        misshapen = [
            f"{name} {list(found[name])} instead of {list(shape)}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ]
        faults = [
            f"{len(names)} {kind}: {_some(names)}"
            for kind, names in (("missing", missing), ("not expected", extra), ("misshapen", misshapen))
            if names
        ]
        if faults:
            raise BadWeights(f"the checkpoint's tensors do not match config.json ({'; '.join(faults)}); fetch it again")

    def read_into(self, name: str, out: Tensor) -> None:
        """Copy one tensor into `out` (same shape; any device, any float dtype, any strides), and convert its dtype.

        Raises UnsupportedModel for a tensor that is not plain floating point, such as a quantised one.
        """
        file = self._files[name]
        kind = file.get_slice(name).get_dtype()
        if kind not in FLOATS:
            raise UnsupportedModel(f"tensor {name} is {kind}; ringkv reads {', '.join(FLOATS)} in safetensors")
        source = file.get_tensor(name)  # a view of the mapped file
        assert source.shape == out.shape, f"{name}: {tuple(source.shape)} on disk, {tuple(out.shape)} requested"
        with torch.no_grad():
            out.copy_(source)

    def groups(self, name: str) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return a four-bit matrix as its GGUF file stored it; None if there is none.

        q uint8 [out, in], 0 to 15; scale and minimum float16 [out, in / 32], one of each per 32 elements of a row.
        """
        if self._groups is None or f"{name}.q" not in self._groups.keys():  # noqa: SIM118 - not a dictionary
            return None
        pairs, scale, minimum = (self._groups.get_tensor(f"{name}.{part}") for part in ("q", "scale", "least"))
        return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(1), scale, minimum


def _open(path: Path) -> Any:
    """Return a `safetensors.safe_open`, which checks the header and the file's length."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise BadWeights(f"{path} ({size} bytes) is truncated or corrupt ({error}); fetch it again") from None


def _open_shards(directory: Path) -> dict[str, Any]:
    shard_of = _read_index(directory / INDEX)
    names = sorted(set(shard_of.values()))
    if absent := [name for name in names if Path(name).name != name or not (directory / name).is_file()]:
        raise BadWeights(
            f"{len(absent)} of {len(names)} shards are missing in {directory}: {_some(absent)}; fetch them"
        )
    files = {name: _open(directory / name) for name in names}
    contents = {name: set(file.keys()) for name, file in files.items()}
    if lost := [tensor for tensor, shard in shard_of.items() if tensor not in contents[shard]]:
        raise BadWeights(
            f"{INDEX} names {len(lost)} tensors that its shards do not contain: {_some(lost)}; fetch it again"
        )
    return {tensor: files[shard] for tensor, shard in shard_of.items()}


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        return {str(tensor): str(shard) for tensor, shard in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadWeights(f"{path} is not a safetensors index ({error!r}); fetch it again") from None


def _nothing_to_open(directory: Path) -> str:
    pickles = [path.name for pattern in PICKLES for path in sorted(directory.glob(pattern))]
    if pickles:
        return (
            f"{directory} has its weights as pickle only ({_some(pickles)}), which can run code and is never opened; "
            "fetch the model's safetensors, or a GGUF"
        )
    return f"{directory} has neither {SINGLE} nor {INDEX}; fetch the model's safetensors"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
