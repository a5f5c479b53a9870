"""The scheduler of a decode worker, without a prefill worker."""

import ast
from collections.abc import Iterator
from pathlib import Path

import toy

import ringkv
from ringkv.base.engine import Cached, Sampled
from ringkv.base.events import Finished
from ringkv.base.kv import KVChoice
from ringkv.base.messages import Stats
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.handoff.decode_loop import decode_scheduler
from ringkv.scheduler.actions import Begin, Decode, Forward, Freed, Idle, Insert
from ringkv.scheduler.scheduler import Scheduler
from tests.refusals import refusal

LAYOUTS = (toy.layout(3, KVChoice("streaming"), 64),)
SOURCE = Path(ringkv.__file__).parent


def scheduler(**shapes: int) -> Scheduler:
    return decode_scheduler(toy.ToyEngine(toy.limits(**{"slots": 2, "lanes": 1} | shapes)))


def request(name: str, priority: int = 0) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=2), priority=priority)


def requested(it: Scheduler) -> list[str]:
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
    it.arrived(request("b"), Cached(1, 1))
    assert it.next() == Insert(request("b"), 1, 1)
    it.inserted("b", LAYOUTS)
    assert it.next() == Decode((None, "b"), {})
    it.sampled((None, "b"), [(Sampled(13, None),), (Sampled(5, None),)])
    it.arrived(request("a"), Cached())
    assert it.next() == Forward({})  # before the other prefix is inserted, because the pass feeds all slots
    assert it.next() == Insert(request("a"), 0, 0)
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
    with refusal("id", "'a'"):
        it.submit(request("b"), request("a"))
    assert it.usage("b") is None


def test_one_prefix_is_inserted_between_two_tokens_and_other_prompts_are_requested_before_it():
    it = scheduler(slots=4)
    for name in "abc":
        it.submit(request(name))
    requested(it)
    for name in "abc":
        it.arrived(request(name), Cached())
    it.submit(request("d"))
    assert requested(it) == ["d"]
    for name, decoded in (("a", ("a", None, None, None)), ("b", ("a", "b", None, None))):
        action = it.next()
        assert isinstance(action, Insert)
        assert action.request.id == name
        it.inserted(name, LAYOUTS)
        assert it.next() == Decode(decoded, {})
        it.sampled(decoded, [(Sampled(5, None),)] * 4)
        assert it.next() == Forward({})


def test_a_prefix_whose_request_ends_is_not_inserted():
    it = scheduler()
    it.submit(request("a"))
    requested(it)
    it.arrived(request("a"), Cached())
    assert it.cancel("a").freed == [Freed(0)]
    assert it.next() == Idle()
    assert it.stats() == Stats(0, 0, 0, 2, 2)


def private_names(*paths: Path) -> Iterator[tuple[bool, str]]:
    """Yield names with a leading underscore that modules define or use as attributes, and whether of `self`."""
    for node in (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        match node:
            case ast.Attribute(value=owner, attr=name) if name.startswith("_") and not name.startswith("__"):
                yield isinstance(owner, ast.Name) and owner.id == "self", name
            case ast.FunctionDef(name=name) if name.startswith("_") and not name.startswith("__"):
                yield True, name


def test_handoff_uses_no_private_name_of_the_scheduler():
    handoff = [*(SOURCE / "handoff").glob("*.py")]
    assert not [name for is_of_self, name in private_names(*handoff) if not is_of_self]
    derived = {name for _, name in private_names(SOURCE / "handoff" / "decode_loop.py")}
    assert derived.isdisjoint(name for _, name in private_names(SOURCE / "scheduler" / "loop.py"))
    subclasses = [path.name for path in handoff if "(Loop):" in path.read_text() or "(Scheduler):" in path.read_text()]
    assert subclasses == ["decode_loop.py"]
