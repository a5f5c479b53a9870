"""compacted: what a request may not choose if its prompt is longer than its lane, and so is compacted in it."""

from ringkv.base.cannot import refuse
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.wanted import of_choice
from ringkv.base.workspace import Workspace


def leading(choice: KVChoice) -> int:
    """Return how many first tokens are never evicted: sinks, and protected tokens from the first on."""
    return max(choice.sinks, *(stop for start, stop in choice.protect if start == 0), 0)


def check_compacted(choice: KVChoice, workspace: Workspace) -> None:
    """Raise InvalidRequest for a choice that needs all tokens of a prompt, or some that a compaction may evict."""
    refuse(of_choice(choice) | {"workspace": f"prefill_workspace {workspace.size:,}"})
    kept, window, first = workspace.kept, choice.window, leading(choice)
    most = kept - max(window + 1, kept // 2)
    inner = any(start for start, _ in choice.protect)
    keeps_first = "kv_sinks" if first == choice.sinks else "kv_protect"
    for is_wrong, setting, reason, instead in (
        (inner, "kv_protect", "names tokens after others", "protect first tokens only"),
        (window >= kept, f"kv_window {window:,}", f"is not below {kept:,}, the entries that stay", "lower it"),
        (first > most, keeps_first, f"keeps {first:,} first tokens, and at most {most:,} may stay", "keep fewer"),
    ):
        if is_wrong:
            raise InvalidRequest(
                f"{setting} {reason}: a prompt of more than {workspace.size:,} tokens, the prefill_workspace, is "
                f"compressed while it is prefilled; {instead}, or start with a larger prefill_workspace, or none",
                setting.partition(" ")[0],
            )
