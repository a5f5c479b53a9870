"""prefill_workspace: the staged entries that one prompt may take, from the user's options."""

from dataclasses import replace

from ringkv.base.compacted import check_compacted
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK, KVChoice
from ringkv.base.workspace import Workspace, step
from ringkv.models.config import ModelConfig
from ringkv.plan.checks import at_least
from ringkv.plan.options import Options


def prefill_workspace(options: Options, config: ModelConfig, kv: KVChoice, longest: int, chunk: int) -> int:
    """Return the workspace as a number of whole chunks; 0 if the longest prompt fits into it, or none is requested.

    kv: the default choice. longest: tokens of the longest prompt. Raises `InvalidRequest` for a workspace that is too
    small, or a choice that needs whole prompts.
    """
    requested = at_least(1, "prefill_workspace", options.prefill_workspace, longest)
    least = 2 * step(chunk)
    if options.prefill_workspace is None or requested >= longest:
        return 0
    window = max((group.window for group in config.groups if group.window is not None), default=0)
    while Workspace.of(least, chunk).kept < window + BLOCK:
        least += step(chunk)
    if requested < least:
        windows = f", and the model has sliding windows of {window:,} tokens" if window else ""
        raise InvalidRequest(
            f"prefill_workspace is {requested:,}; it must be at least {least:,}, because prompts are prefilled in "
            f"chunks of {chunk:,} tokens{windows}",
            "prefill_workspace",
        )
    size = -(-requested // step(chunk)) * step(chunk)
    check_compacted(replace(kv, protect=()), Workspace.of(size, chunk))
    return size
