"""open_files: the safetensors files of a model directory, memory-mapped.

Only safetensors are read: pickles can run code, so ringkv never opens one.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ringkv.base.errors import BadWeights
from ringkv.base.json_file import read_object
from ringkv.base.shown import one_line, shown_names
from ringkv.weights.files import INDEX, SINGLE

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
LONGEST_NAME = 255  # bytes of a file's name


def open_files(directory: Path) -> dict[str, Any]:
    """Return the open file of each tensor.

    Raises BadWeights if there is none, a shard is missing, or a file is truncated or corrupt.
    """
    if (directory / INDEX).is_file():
        return _open_shards(directory)
    if (directory / SINGLE).is_file():
        file = open_file(directory / SINGLE)
        return dict.fromkeys(file.keys(), file)
    if pickles := [path.name for pattern in PICKLES for path in sorted(directory.glob(pattern))]:
        raise BadWeights(
            f"{directory} has its weights as pickle only ({shown_names(pickles)}), which can run code and is never "
            "opened; fetch the model's safetensors, or a GGUF"
        )
    raise BadWeights(f"{directory} has neither {SINGLE} nor {INDEX}; fetch the model's safetensors")


def open_file(path: Path) -> Any:
    """Return a `safetensors.safe_open`, which checks the header and the file's length."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise BadWeights(f"{path} ({size} bytes) is truncated or corrupt ({one_line(error)}); fetch it again") from None


def _open_shards(directory: Path) -> dict[str, Any]:
    shard_of = _read_index(directory / INDEX)
    names = sorted(set(shard_of.values()))
    if absent := [name for name in names if not _is_inside(directory, name)]:
        raise BadWeights(
            f"{len(absent)} of {len(names)} shards are missing in {directory}: {shown_names(absent)}; fetch them"
        )
    files = {name: open_file(directory / name) for name in names}
    contents = {name: set(file.keys()) for name, file in files.items()}
    if lost := [tensor for tensor, shard in shard_of.items() if tensor not in contents[shard]]:
        raise BadWeights(
            f"{INDEX} names {len(lost)} tensors that its shards do not contain: {shown_names(lost)}; fetch it again"
        )
    return {tensor: files[shard] for tensor, shard in shard_of.items()}


def _is_inside(directory: Path, name: str) -> bool:
    """Return whether this is the name of a file in the directory itself."""
    is_name = Path(name).name == name and "\0" not in name and len(name.encode(errors="replace")) <= LONGEST_NAME
    return is_name and (directory / name).is_file()


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise BadWeights(f"{path} is not a safetensors index: its weight_map names no files; fetch it again")
    return weight_map
