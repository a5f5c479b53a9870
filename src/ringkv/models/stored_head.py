"""stored_head: whether a checkpoint has a vocabulary projection that differs from its embedding. No torch.

Fine-tuning and quantising tools write a new head and leave `tie_word_embeddings` in config.json. The head of the file
counts then, as in transformers 5 (`PreTrainedModel.tie_weights`) and vLLM (pull request 51665).
"""

import logging
import mmap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ringkv.base.safetensors_header import header

PIECE = 16 << 20  # bytes that are compared together

log = logging.getLogger(__name__)


def has_head(directory: Path, embedding: str, head: str) -> bool:
    """Return whether the tensor `head`, or a quantised form of it, is stored with other values than `embedding`."""
    files = sorted(directory.glob("*.safetensors"))
    stamps = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return _has_head(stamps, embedding, head)


@cache
def _has_head(stamps: tuple[tuple[Path, int, int], ...], embedding: str, head: str) -> bool:
    entries = {name: (path, entry) for path, *_ in stamps for name, entry in header(path).items()}
    module = head.removesuffix("weight")
    if not any(name.startswith(module) for name in entries):
        return False
    if head in entries and embedding in entries and _equal(entries[head], entries[embedding]):
        return False
    log.warning(
        "config.json says tie_word_embeddings, but the checkpoint's %s differs from %s; ringkv uses the checkpoint's",
        head,
        embedding,
    )
    return True


def _equal(head: tuple[Path, dict[str, Any]], embedding: tuple[Path, dict[str, Any]]) -> bool:
    kinds = [(entry.get("dtype"), entry.get("shape")) for _, entry in (head, embedding)]
    pieces = zip(_pieces(*head), _pieces(*embedding), strict=True)
    return kinds[0] == kinds[1] and all(left == right for left, right in pieces)


def _pieces(path: Path, entry: dict[str, Any]) -> Iterator[bytes]:
    first, last = entry["data_offsets"]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for start in range(first, last, PIECE):
            yield mapped[start : min(start + PIECE, last)]
