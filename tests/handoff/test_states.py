"""The states of a transfer, and transitions that are refused."""

from itertools import pairwise, product

import pytest

from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.handoff.states import State, Transfer

PATH = (State.RESERVED, State.SENT, State.ACKNOWLEDGED, State.INSERTED)
ENDS = (State.INSERTED, State.DROPPED)


def transfer(state: State = State.RESERVED) -> Transfer:
    return Transfer(0, Request("a", (1,), SamplingParams()), state)


def test_a_prefix_goes_step_by_step_to_its_slot():
    one = transfer()
    for state in PATH[1:]:
        one.to(state)
    assert one.state is State.INSERTED


def test_every_transition_but_one_step_and_a_drop_is_refused():
    allowed = {*pairwise(PATH), *((state, State.DROPPED) for state in PATH[:-1])}
    for before, after in allowed:
        transfer(before).to(after)
    for before, after in set(product(State, State)) - allowed:
        with pytest.raises(AssertionError, match=f"from {before.name} to {after.name}"):
            transfer(before).to(after)


@pytest.mark.parametrize("state", State)
def test_a_prefix_can_be_dropped_until_it_has_ended(state: State):
    one = transfer(state)
    assert one.drop() == (state not in ENDS)
    assert one.state is (State.INSERTED if state is State.INSERTED else State.DROPPED)
