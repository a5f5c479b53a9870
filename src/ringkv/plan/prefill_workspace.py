"""prefill_workspace: the longest prompt in whole chunks, and the staged entries that it may take."""

from collections.abc import Sequence
from dataclasses import replace

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.compacted import check_compacted
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK, KVChoice
from ringkv.base.workspace import Workspace, step
from ringkv.plan.checks import at_least

DEFAULT_CHUNK = 512
DEFAULT_CHUNK_ON_GPU = 2048  # a smaller chunk is bound by kernel launches


def in_chunks(prompt: int, context: int, chunk: int, workspace: int | None = None) -> tuple[int, int]:
    """Return the chunk and the prompt limit: `prompt` tokens, rounded up to a multiple of the chunk.

    If the rounded limit exceeds the context, the chunk is made smaller so that whole chunks fit in the context. The
    limit is then below the context by less than one token per chunk.
    """
    chunk = min(context, chunk)
    if workspace is not None and workspace < prompt:
        return chunk, prompt  # whole chunks are staged whatever the limit is
    chunks = -(-prompt // chunk)
    if chunks * chunk > context:
        chunk = context // chunks
    return chunk, chunks * chunk


def prefill_workspace(
    requested: int | None, groups: Sequence[LayerGroup], kv: KVChoice, longest: int, chunk: int
) -> int:
    """Return the workspace as whole chunks; 0 if the longest prompt fits into it, or if None is requested.

    groups: of the model's layers. kv: the default choice. longest: tokens of the longest prompt. Raises
    `InvalidRequest` for a workspace that is too small, or a choice that needs whole prompts.
    """
    size = at_least(1, "prefill_workspace", requested, longest)
    least = 2 * step(chunk)
    if size >= longest:
        return 0
    window = max((group.window for group in groups if group.window is not None), default=0)
    while Workspace.of(least, chunk).kept < window + BLOCK:
        least += step(chunk)
    if size < least:
        windows = f", and the model has sliding windows of {window:,} tokens" if window else ""
        raise InvalidRequest(
            f"prefill_workspace is {size:,}; it must be at least {least:,}, because prompts are prefilled in "
            f"chunks of {chunk:,} tokens{windows}",
            "prefill_workspace",
        )
    size = -(-size // step(chunk)) * step(chunk)
    check_compacted(replace(kv, protect=()), Workspace.of(size, chunk))
    return size
