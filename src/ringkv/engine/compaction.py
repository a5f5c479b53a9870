"""compaction: what a lane that is shorter than its prompt keeps for a request, and which others it may serve then."""

from ringkv.base.compacted import check_compacted, leading
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.workspace import Workspace
from ringkv.cache.compress.working_set import WorkingSet
from ringkv.cache.layouts import layout

NOTHING = WorkingSet(0, 0)


def working_set(choice: KVChoice, tokens: int, workspace: Workspace, capacity: int, window: int) -> WorkingSet:
    """Return what compactions keep of a prompt of so many tokens; nothing if it fits into its lane.

    capacity: entries of a slot. window: last queries that are kept; their tokens' entries stay too. Raises
    InvalidRequest for a choice that needs the whole prompt.
    """
    if tokens <= workspace.size:
        return NOTHING
    check_compacted(choice, workspace)
    # In a layout that evicts something, `recent` is what the choice keeps of the newest tokens.
    plan = layout(choice, tokens + capacity, capacity)
    recent = plan.recent * min(plan.capacity, workspace.kept) // plan.capacity
    return WorkingSet.of(workspace, leading(choice), max(recent, window))


def check_kept(choice: KVChoice, workspace: Workspace, kept: WorkingSet) -> None:
    """Raise InvalidRequest for a choice that a compacted lane cannot serve."""
    check_compacted(choice, workspace)
    if leading(choice) > kept.leading:
        raise InvalidRequest(
            f"kv_protect and kv_sinks keep {leading(choice):,} first tokens, and the prompt was prefilled for a "
            f"request that keeps {kept.leading:,}; send it by itself",
            "kv_protect",
        )
