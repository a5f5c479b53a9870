"""prefill_workspace: the staged entries that one prompt may take, from the user's options."""

from collections.abc import Sequence
from dataclasses import replace

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.compacted import check_compacted
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK, KVChoice
from ringkv.base.workspace import Workspace, step
from ringkv.plan.checks import at_least


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
