"""A GGUF in several files, NAME-00001-of-00003.gguf and so on. The first has all metadata."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown_names
from ringkv.weights.gguf.header import Header, read_header

NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
MOST_PARTS = 1000


def set_name(path: Path) -> str:
    """Return a file's name without `.gguf` and the number of its part."""
    part = NAME.fullmatch(path.name)
    return part[1] if part else path.name.removesuffix(".gguf")


def part_paths(path: Path) -> list[Path]:
    """Return the files of the set that a file belongs to by its name, whether they exist or not."""
    part = NAME.fullmatch(path.name)
    if not part or not 1 <= int(part[3]) <= MOST_PARTS:
        return [path]
    return [path.with_name(f"{part[1]}-{number:05}-of-{part[3]}.gguf") for number in range(1, int(part[3]) + 1)]


def headers(first: Path, header: Header, number: int, count: int) -> Mapping[Path, Header]:
    """Return the header of each file, by split.no and split.count of the file that was opened.

    Raises UnsupportedModel for a part that is not the first or is not named as one, BadWeights for parts that are
    missing or belong to another model.
    """
    if count <= 1:
        return {first: header}
    paths = part_paths(first)
    if len(paths) != count or number >= count:
        raise UnsupportedModel(
            f"{first} is one of {count} parts, which need to be called NAME-00001-of-{count:05}.gguf and so on, up to "
            f"{MOST_PARTS:,} of them; rename them, or join them first (llama-gguf-split --merge)"
        )
    if number or first != paths[0]:
        raise UnsupportedModel(f"{first} is part {number + 1} of {count}; give the first, {paths[0]}")
    if absent := [path.name for path in paths if not path.is_file()]:
        raise BadWeights(
            f"{len(absent)} of the {count} parts of {first} are missing: {shown_names(absent)}; fetch them"
        )
    parts = {first: header, **{path: read_header(path) for path in paths[1:]}}
    for index, (path, part) in enumerate(parts.items()):
        if (part.metadata.get("split.no"), part.metadata.get("split.count")) != (index, count):
            raise BadWeights(f"{path} is not part {index + 1} of {count}, as its name says; fetch it again")
    _check_tensors(first, header.metadata, list(parts.values()))
    return parts


def _check_tensors(first: Path, metadata: Mapping[str, Any], parts: list[Header]) -> None:
    names = [name for part in parts for name in part.tensors]
    declared = metadata.get("split.tensors.count", len(names))
    if len(set(names)) < len(names) or declared != len(names):
        raise BadWeights(
            f"the parts of {first} have {len(names):,} tensors, {len(set(names)):,} of them different, and should have "
            f"{declared:,}; they belong to different models, so fetch them again"
        )
