"""The scheduler of a decode worker, without a prefill worker."""

import pytest
import toy

from ringkv.base.engine import Cached, Sampled
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import Finished
from ringkv.base.kv import KVChoice
from ringkv.base.messages import Stats
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.handoff.decode_scheduler import DecodeScheduler
from ringkv.scheduler.actions import Begin, Decode, Forward, Freed, Idle

RING = KVChoice("streaming")
LAYOUTS = (toy.layout(3, RING, 64),)


def scheduler(**shapes: int) -> DecodeScheduler:
    return DecodeScheduler(toy.limits(**{"slots": 2, "lanes": 1} | shapes), RING)


def request(name: str, priority: int = 0) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=2), priority=priority)


def requested(it: DecodeScheduler) -> list[str]:
    """Report every request for a prompt as sent, and return their names."""
    names = []
    while isinstance(action := it.next(), Begin):
        it.begun(action.request, Cached())
        names.append(action.request.id)
    return names


def test_as_many_prompts_are_requested_as_there_are_slots():
    it = scheduler()
    for name in "abc":
        it.submit(request(name))
    assert requested(it) == ["a", "b"]
    assert it.stats() == Stats(1, 2, 0, 0)
    assert {it.reserved(name).slot for name in "ab"} == {0, 1}
    assert it.next() == Idle()


def test_each_of_several_answers_is_requested_and_they_start_in_the_order_of_priorities():
    it = scheduler(slots=3)
    it.submit(request("a"), request("b"))
    it.submit(request("c", priority=-1))
    assert requested(it) == ["c", "a", "b"]


def test_a_prefix_that_arrives_is_sampled_from_while_another_is_awaited():
    it = scheduler()
    it.submit(request("a"))
    it.submit(request("b"))
    requested(it)
    it.arrived("b", LAYOUTS, 1)
    assert it.next() == Decode((None, "b"), {})
    it.sampled((None, "b"), [(Sampled(13, None),), (Sampled(5, None),)])
    assert not it.may_insert  # the pass feeds all slots that are taken
    assert it.next() == Forward({})
    assert it.may_insert
    usage = it.usage("b")
    assert usage is not None
    assert (usage.cached_tokens, usage.kv.kept) == (1, 3)


def test_a_request_that_ends_before_its_prefix_arrives_frees_its_slot_for_the_next():
    it = scheduler(slots=1)
    it.submit(request("a"))
    it.submit(request("b"))
    assert requested(it) == ["a"]
    events, freed = it.cancel("a")
    assert isinstance(events[0], Finished)
    assert freed == [Freed(0)]
    assert requested(it) == ["b"]


def test_an_id_in_use_is_refused_with_all_that_share_its_prompt():
    it = scheduler()
    it.submit(request("a"))
    with pytest.raises(InvalidRequest, match="'a' is in use"):
        it.submit(request("b"), request("a"))
    assert it.usage("b") is None
