"""stored_bits: how a model directory's weights will be stored in memory, from its small files and headers. No torch.

`--weights int8` keeps groups of bytes that a checkpoint has. Layers of a kind share a format, so this is the most that
they take: 10 bits a weight if some groups have minimums, and 9 if none have.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ringkv.base.config import Weights
from ringkv.base.json_file import read_object
from ringkv.base.safetensors_header import header
from ringkv.plan.footprint import GROUPS_OF_BYTES, GROUPS_WITH_MINIMUMS
from ringkv.weights.files import BYTE_GROUPS, GROUPS, INDEX
from ringkv.weights.group_layout import INT4, INT8, LEAST


def stored_as(folder: Path, weights: Weights) -> str:
    """Return what `weight_bytes` calls the format of these weights; `weights` itself unless they are in groups."""
    if weights != "int8":
        return weights
    if (folder / BYTE_GROUPS).is_file() and not (folder / INDEX).is_file():
        ends = {name.rpartition(".")[2] for name in header(folder / BYTE_GROUPS)}
        has_minimums = bool(ends & LEAST.keys()) or (folder / GROUPS).is_file()
        return GROUPS_WITH_MINIMUMS if has_minimums else GROUPS_OF_BYTES
    config = folder / "config.json"
    settings = read_object(config).get("quantization_config") if config.is_file() else None
    if not isinstance(settings, dict):
        return weights
    stored = _QUANTISERS.get(str(settings.get("quant_method")))
    return "int8" if stored is None else stored(settings)


def of_gguf_types(types: Collection[str]) -> str:
    """Return what `--weights int8` stores of a GGUF whose layers have tensors of these types."""
    from ringkv.weights.gguf.groups import TYPES

    grouped = [TYPES[name] for name in types if name in TYPES]
    if not any(each.layout is INT8 for each in grouped) and "MXFP4" not in types:
        return "int8"
    has_minimums = any(each.has_minimums or each.layout is INT4 for each in grouped)
    return GROUPS_WITH_MINIMUMS if has_minimums else GROUPS_OF_BYTES


def _of_compressed_tensors(settings: Mapping[str, Any]) -> str:
    groups = settings.get("config_groups")
    each = groups.values() if isinstance(groups, dict) else ()
    schemes = (group.get("weights") for group in each if isinstance(group, dict))
    is_in_bytes = any(isinstance(scheme, dict) and _is_in_bytes(scheme) for scheme in schemes)
    return GROUPS_WITH_MINIMUMS if is_in_bytes else "int8"


def _is_in_bytes(scheme: Mapping[str, Any]) -> bool:
    """Whether 8 bits have groups. Rows of symmetric integers are stored as `int8` stores them."""
    return scheme.get("num_bits") == 8 and (scheme.get("strategy") != "channel" or scheme.get("symmetric") is False)


# Other quantisers have 4 bits, or 8 with one scale per row.
_QUANTISERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "mxfp4": lambda _: GROUPS_OF_BYTES,
    "gptq": lambda settings: GROUPS_WITH_MINIMUMS if settings.get("bits") == 8 else "int8",
    "compressed-tensors": _of_compressed_tensors,
}
