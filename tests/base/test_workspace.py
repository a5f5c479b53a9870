"""Where a lane is compacted, against a lane that is counted token by token."""

from random import Random

import pytest

from ringkv.base.workspace import Workspace, step, workspace
from tests import toy


@pytest.mark.parametrize(("size", "chunk"), [(128, 16), (1024, 512), (4096, 512), (640, 80)])
def test_a_lane_that_is_filled_token_by_token_is_compacted_whenever_it_is_full(size: int, chunk: int) -> None:
    made = Workspace.of(size, chunk)
    assert size // 2 <= made.kept < size
    assert made.kept % step(chunk) == made.block % step(chunk) == 0
    held, dropped = 0, 0
    for token in range(5 * size):
        assert made.compacts(token) == (held == size)
        if held == size:
            held, dropped = made.kept, dropped + made.block
        assert (made.dropped(token), token - dropped) == (dropped, held)
        assert made.stop(token) == token + size - held
        held += 1


def test_without_a_workspace_nothing_is_compacted() -> None:
    made = workspace(0, longest=100, chunk=16)
    for token in Random(0).choices(range(100), k=10):
        assert (made.compacts(token), made.dropped(token), made.stop(token)) == (False, 0, 100)


def test_a_slot_holds_no_more_of_a_long_prompt_than_a_compaction_leaves() -> None:
    bounded = toy.limits(prefill_workspace=256, capacity=1000)
    assert [bounded.kept_of(tokens) for tokens in (256, 257)] == [1000, 192]
    assert toy.limits(capacity=1000).kept_of(500) == 1000
