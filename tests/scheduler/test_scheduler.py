import pytest
import toy

from ringkv.base.engine import Cached, PrefillChunk, Sampled
from ringkv.base.events import Failed, Finished, Token
from ringkv.base.failure import Failure
from ringkv.base.kv import KVChoice
from ringkv.base.messages import Stats
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.actions import Action, Begin, Decode, Freed, Idle, Insert, Prefill
from ringkv.scheduler.scheduler import Scheduler
from tests.refusals import refusal

RING = KVChoice("streaming")


def scheduler(**shapes: int) -> Scheduler:
    return Scheduler(toy.limits(**shapes), RING)


def request(name: str, prompt: int = 5, max_tokens: int = 100, salt: str | None = None) -> Request:
    """Prompts with different salts share no prefill; by default each has its own."""
    return Request(name, (1,) * prompt, SamplingParams(max_tokens=max_tokens), salt=name if salt is None else salt)


def following(it: Scheduler, cached: int = 0) -> Action:
    """Return the next action after any Begin, which is reported with `cached` tokens."""
    while isinstance(action := it.next(), Begin):
        it.begun(action.request, Cached(cached, cached))
    return action


def chunk(action: Action) -> PrefillChunk:
    """Return a pass's only chunk."""
    assert isinstance(action, Prefill)
    (work,) = action.work
    return work


def carry_out(it: Scheduler, action: Action, token: int | None = 1) -> list:
    """Report an action as done, with `token` sampled in every slot. Returns the events."""
    match action:
        case Prefill((work,), _) if work.is_last:
            it.passed(work)
            it.inserted(work.request.id, (toy.layout(work.stop, RING, 64),))
        case Insert(inserted, _, _):
            it.inserted(inserted.id, (toy.layout(len(inserted.tokens), RING, 64),))
        case Decode(owners, _):
            return it.sampled(owners, [(Sampled(token, None),)] * len(owners)).events
    return []


def names(it: Scheduler, count: int) -> list[str]:
    """Carry out `count` actions. Returns P for a chunk and + for an insertion, with the request; else D, F or I."""
    seen = []
    for _ in range(count):
        action = following(it)
        carry_out(it, action)
        match action:
            case Prefill():
                seen.append(f"P{chunk(action).request.id}")
            case Insert():
                seen.append(f"+{action.request.id}")
            case _:
                seen.append(type(action).__name__[0])
    return seen


def test_nothing_to_do_is_idle():
    it = scheduler()
    assert following(it) == Idle()
    assert it.idle


def test_requests_take_slots_in_order_of_submission():
    it = scheduler(slots=2)
    for name in "cab":
        it.submit(request(name))
    assert names(it, 3) == ["Pc", "D", "F"]
    assert names(it, 3) == ["Pa", "D", "F"]
    assert it.stats() == Stats(waiting=1, prefilling=0, running=2, free_slots=0)
    it.cancel("a")
    assert chunk(following(it)).request.id == "b"


def test_a_held_request_is_skipped_and_keeps_its_place():
    it = scheduler(slots=1)
    for name in "abc":
        it.submit(request(name))
    it.hold("a")
    assert names(it, 3) == ["Pb", "D", "F"]
    it.hold("a", False)
    it.cancel("b")
    assert names(it, 1) == ["Pa"]
    assert it.stats().waiting == 1


def test_a_slot_is_reserved_before_the_first_chunk():
    it = scheduler(slots=1, lanes=2, chunk=2)
    it.submit(request("a"))
    it.submit(request("b"))
    following(it)
    assert it.stats() == Stats(waiting=1, prefilling=1, running=0, free_slots=0)


def test_chunks_begin_at_multiples_of_the_chunk_and_cover_the_prompt():
    it = scheduler(chunk=8)
    it.submit(request("a", prompt=21))
    works = [chunk(following(it)) for _ in range(3)]
    assert [(work.start, work.stop) for work in works] == [(0, 8), (8, 16), (16, 21)]
    assert [work.is_last for work in works] == [False, False, True]


@pytest.mark.parametrize("cached", [1, 7, 8, 20])
def test_a_prompt_is_prefilled_after_its_cached_tokens_and_chunks_end_at_the_same_tokens(cached):
    it = scheduler(chunk=8)
    it.submit(request("a", prompt=21))
    first = chunk(following(it, cached))
    assert (first.start, first.stop) == (cached, min(21, (cached // 8 + 1) * 8))
    assert it.prefilled("a") == first.stop
    while not first.is_last:
        start, first = first.stop, chunk(following(it))
        assert first.start == start
    assert it.usage("a").cached_tokens == cached


def test_a_prompt_begins_once_for_all_that_share_it():
    it = scheduler(chunk=2)
    it.submit(request("a", salt="one"), request("b", salt="one"))
    first = it.next()
    assert first == Begin(request("a", salt="one"), 0)
    it.begun(first.request, Cached())
    actions = [it.next() for _ in range(3)]
    assert [type(action) for action in actions] == [Prefill] * 3


@pytest.mark.parametrize(("turns", "seen"), [("reread", ()), ("continue", (1, 1, 1, 5, 6))])
def test_a_freed_slots_tokens_are_reported_if_a_turn_may_continue_from_them(turns, seen):
    it = scheduler()
    it.submit(Request("a", (1, 1, 1), SamplingParams(max_tokens=3), KVChoice("streaming", turns=turns)))
    carry_out(it, following(it))
    for token in (5, 6):
        carry_out(it, following(it), token)
        following(it)
    outcome = it.sampled(following(it).owners, [(Sampled(7, None),)] * 2)
    assert outcome.freed == [Freed(0, seen)]  # the last token sampled is not fed


def test_a_failed_requests_tokens_are_not_reported():
    it = scheduler()
    it.submit(Request("a", (1, 1, 1), SamplingParams(), KVChoice("streaming", turns="continue")))
    carry_out(it, following(it))
    assert it.sampled(following(it).owners, [(Sampled(None, None),)] * 2).freed == [Freed(0)]


def test_chunks_alternate_with_decoding_only_if_a_request_runs():
    it = scheduler(chunk=2)
    it.submit(request("a", prompt=5))
    assert names(it, 4) == ["Pa", "Pa", "Pa", "D"]
    it.submit(request("b", prompt=5))
    assert names(it, 9) == ["F", "Pb", "D", "F", "Pb", "D", "F", "Pb", "D"]


def test_sampled_tokens_are_fed_before_a_prompt_is_inserted():
    it = scheduler()
    it.submit(request("a"))
    assert names(it, 2) == ["Pa", "D"]
    it.submit(request("b"))
    assert names(it, 2) == ["F", "Pb"]


def test_staged_prompts_alternate_over_the_lanes():
    it = scheduler(lanes=2, chunk=2)
    it.submit(request("a", prompt=6))
    it.submit(request("b", prompt=2))
    assert names(it, 5) == ["Pa", "Pb", "D", "F", "Pa"]


def test_the_last_token_needs_no_forward_pass():
    it = scheduler()
    it.submit(request("a", max_tokens=1))
    assert names(it, 3) == ["Pa", "D", "I"]


def test_a_token_comes_before_the_finish_it_causes_and_its_slot_is_freed():
    it = scheduler()
    it.submit(request("a", max_tokens=1))
    carry_out(it, following(it))
    outcome = it.sampled(following(it).owners, [(Sampled(7, None),), (Sampled(0, None),)])
    assert [type(event) for event in outcome.events] == [Token, Finished]
    assert outcome.events[0] == Token("a", 7, is_last=True)
    assert outcome.freed == [Freed(0)]
    assert it.stats() == Stats(0, 0, 0, 2)


@pytest.mark.parametrize("steps", range(7))
def test_a_request_can_be_cancelled_at_any_stage_and_frees_everything(steps):
    it = scheduler(chunk=2)
    it.submit(request("a"))
    names(it, steps)
    (finished,) = it.cancel("a").events
    sampled = max(0, (steps - 2) // 2)  # three chunks, then D, F, D
    assert (finished.reason, finished.usage.prompt_tokens) == ("abort", 5)
    assert finished.usage.completion_tokens == sampled
    assert it.stats() == Stats(0, 0, 0, 2)
    assert following(it) == Idle()


def test_cancelling_twice_or_an_unknown_id_does_nothing():
    it = scheduler()
    it.submit(request("a"))
    it.cancel("a")
    assert it.cancel("a") == ([], [])
    assert it.cancel("unknown") == ([], [])


def test_a_token_for_a_request_that_ended_meanwhile_is_dropped():
    it = scheduler()
    it.submit(request("a"))
    carry_out(it, following(it))
    owners = following(it).owners
    it.cancel("a")
    it.submit(request("b"))
    carry_out(it, following(it))
    assert following(it).owners == ("b", None)
    assert it.sampled(owners, [(Sampled(1, None),)] * 2) == ([], [])


def test_no_forward_pass_follows_if_all_requests_ended_after_sampling():
    it = scheduler()
    it.submit(request("a"))
    names(it, 2)
    it.cancel("a")
    it.submit(request("b"))
    assert names(it, 3) == ["Pb", "D", "F"]


def test_logits_that_are_not_finite_fail_their_request_alone():
    it = scheduler()
    it.submit(request("a"))
    it.submit(request("b"))
    names(it, 4)
    outcome = it.sampled(following(it).owners, [(Sampled(None, None),), (Sampled(5, None),)])
    failed, token = outcome.events
    assert (failed.request_id, failed.kind) == ("a", "RequestFailed")
    assert token == Token("b", 5)
    assert it.stats().running == 1


def test_a_failed_prompt_frees_its_slot_and_lane():
    it = scheduler(slots=1)
    it.submit(request("a"))
    it.submit(request("b"))
    following(it)
    assert it.failed("a", Failure("BadToken", "no", "prompt")).events == [Failed("a", "BadToken", "no", "prompt")]
    assert chunk(following(it)).request.id == "b"


def test_an_id_in_use_is_refused_until_its_request_ends():
    it = scheduler()
    it.submit(request("a"))
    with refusal("id", "'a'"):
        it.submit(request("a"))
    it.cancel("a")
    it.submit(request("a"))
    assert it.stats().waiting == 1


def test_a_shared_prompt_is_prefilled_once_and_inserted_for_each():
    it = scheduler(slots=3, chunk=2)
    it.submit(
        request("a", prompt=4, salt="one"), request("b", prompt=4, salt="one"), request("c", prompt=4, salt="one")
    )
    assert names(it, 9) == ["Pa", "Pa", "D", "F", "+b", "D", "F", "+c", "D"]
    assert it.stats() == Stats(waiting=0, prefilling=0, running=3, free_slots=0)


def test_a_shared_prompt_keeps_its_lane_until_the_last_has_a_slot():
    it = scheduler(slots=1)
    it.submit(request("a", max_tokens=1, salt="one"), request("b", max_tokens=1, salt="one"))
    it.submit(request("later", max_tokens=1))
    assert names(it, 3) == ["Pa", "D", "+b"]
    assert it.stats().waiting == 1  # the lane has just become free, and no slot
    assert names(it, 3) == ["D", "Plater", "D"]


def test_slots_that_a_shared_prompt_needs_are_not_given_to_a_later_one():
    it = scheduler(slots=2, lanes=2)
    it.submit(request("a", salt="one"), request("b", salt="one"))
    assert names(it, 1) == ["Pa"]
    it.submit(request("later"))
    assert names(it, 4) == ["D", "F", "+b", "D"]
    assert it.stats() == Stats(waiting=1, prefilling=0, running=2, free_slots=0)


@pytest.mark.parametrize("steps", range(3))
def test_if_the_first_request_is_cancelled_the_next_continues_its_prompt(steps):
    it = scheduler(slots=2, chunk=2)
    it.submit(request("a", prompt=6, salt="one"), request("b", prompt=6, salt="one"))
    names(it, steps)
    assert it.cancel("a").freed == []  # its slot is the other's now
    assert names(it, 4 - steps) == ["Pb"] * (3 - steps) + ["D"]
    assert it.stats() == Stats(waiting=0, prefilling=0, running=1, free_slots=1)


def test_a_prompt_whose_requests_are_all_cancelled_frees_its_lane():
    it = scheduler(slots=1)
    it.submit(request("a", salt="one"), request("b", salt="one"))
    names(it, 1)
    it.cancel("b")
    it.cancel("a")
    it.submit(request("c"))
    assert names(it, 2) == ["Pc", "D"]


def test_forced_tokens_are_passed_by_slot_and_counted_as_output():
    it = scheduler()
    it.submit(Request("a", (1,) * 5, SamplingParams(max_tokens=3), eos=(8,), forced=(7, 8)))
    carry_out(it, following(it))
    for forced in ({0: 7}, {0: 8}, {}):
        action = following(it)
        assert (action.owners, action.forced) == (("a", None), forced)
        (_, *ended) = carry_out(it, action, token=forced.get(0, 8))
        following(it)
    assert [end.reason for end in ended] == ["stop"]  # the forced 8 did not end it


def test_tokens_that_were_fed_count_as_seen_by_the_cache():
    it = scheduler(chunk=64)
    it.submit(request("a", prompt=64))
    assert names(it, 4) == ["Pa", "D", "F", "D"]
    (finished,) = it.cancel("a").events
    assert finished.usage.completion_tokens == 2
    assert finished.usage.kv.evicted == 1  # 64 + 1 fed, 64 entries
    it.submit(request("b", prompt=64))
    assert names(it, 3) == ["Pb", "D", "F"]
    (finished,) = it.cancel("b").events
    assert (finished.usage.completion_tokens, finished.usage.kv.evicted) == (1, 1)
