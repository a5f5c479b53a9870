from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest
import toy

from ringkv.base.engine import Limits
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.kv import KVChoice
from ringkv.base.messages import Stats
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.loop import Loop

RING = KVChoice("streaming")


def request(
    name: str, *tokens: int, max_tokens: int = 5, kv: KVChoice | None = None, salt: str = "", **sampling
) -> Request:
    """Prompts with different salts share no prefill; each has its own."""
    return Request(name, tokens or (1, 2, 3), SamplingParams(max_tokens=max_tokens, **sampling), kv, salt=salt or name)


def run(loop: Loop, *requests: Request) -> list[Event]:
    """Submit all at once and serve them to the end."""
    events = [event for one in requests for event in loop.submit(one)]
    for _ in range(10_000):
        events += loop.step()
        if loop.idle:
            return events
    raise AssertionError("the loop is stuck")


def tokens(events: list[Event], name: str) -> list[int]:
    return [event.token for event in events if isinstance(event, Token) and event.request_id == name]


def ends(events: list[Event]) -> dict[str, Event]:
    return {event.request_id: event for event in events if not isinstance(event, Token)}


def test_an_answer_is_the_one_computed_by_hand():
    events = run(Loop(toy.ToyEngine()), request("a", 50, 60, max_tokens=4))
    # 110 mod 97, then each sum doubles: 13, 26, 52, 104 mod 97
    assert tokens(events, "a") == [13, 26, 52, 7]


def test_tokens_are_returned_before_the_engine_feeds_them():
    engine = toy.ToyEngine()
    loop = Loop(engine)
    loop.submit(request("a"))
    assert [tokens(loop.step(), "a") for _ in ("begin", "prefill", "sample")] == [[], [], [6]]
    assert "forward" not in engine.log


def test_a_request_of_one_token_needs_no_forward_pass():
    engine = toy.ToyEngine()
    run(Loop(engine), request("a", max_tokens=1))
    assert "forward" not in engine.log


@pytest.mark.parametrize("verb", ["begin", "prefill", "compress", "insert"])
def test_a_request_that_raises_in_an_engine_call_fails_alone(verb):
    events = run(Loop(toy.ToyEngine()), request("a"), request(verb), request("b"))
    failed = ends(events)[verb]
    assert (failed.kind, "ValueError: " + verb in failed.message) == ("RequestFailed", True)
    assert "second line" not in failed.message
    for name in "ab":
        assert tokens(events, name) == toy.answer((1, 2, 3), 5)
        assert ends(events)[name].reason == "length"


def test_a_ringkv_error_keeps_its_class_and_text():
    events = run(Loop(toy.ToyEngine()), request("a", kv=KVChoice("streaming", budget=3)), request("b"))
    failed = ends(events)["a"]
    assert (failed.kind, failed.param) == ("BudgetTooSmall", "kv_budget")
    assert "at least 5" in failed.message
    assert ends(events)["b"].reason == "length"


def test_a_request_that_can_never_be_served_fails_at_once():
    loop = Loop(toy.ToyEngine())
    (failed,) = loop.submit(Request("a", (), SamplingParams()))
    assert (failed.kind, failed.param) == ("EmptyPrompt", "prompt")
    assert loop.idle


def test_not_finite_logits_fail_one_request_after_its_tokens():
    events = run(Loop(toy.ToyEngine()), request("nan"), request("b"))
    assert tokens(events, "nan") == toy.answer((1, 2, 3), 2)
    assert isinstance(ends(events)["nan"], Failed)
    assert tokens(events, "b") == toy.answer((1, 2, 3), 5)


def test_an_error_in_a_shared_sampling_step_is_raised():
    loop = Loop(toy.ToyEngine())
    loop.submit(request("fatal"))
    assert [loop.step() for _ in ("begin", "prefill")] == [[], []]
    with pytest.raises(ValueError, match="fatal is broken"):
        loop.step()


def test_an_id_in_use_is_refused_and_the_first_goes_on():
    loop = Loop(toy.ToyEngine())
    loop.submit(request("a"))
    with pytest.raises(InvalidRequest):
        loop.submit(request("a"))
    assert tokens(run(loop), "a") == toy.answer((1, 2, 3), 5)


def test_a_full_cache_ends_when_it_is_full_and_a_ring_goes_on():
    prompt = (1,) * 60
    full = request("full", *prompt, max_tokens=40, kv=KVChoice("full"))
    ring = request("ring", *prompt, max_tokens=40, kv=RING)
    ended = ends(run(Loop(toy.ToyEngine()), full, ring))
    assert ended["full"].reason == "length"
    assert ended["full"].usage.completion_tokens == 5
    assert ended["full"].usage.kv.evicted == 0
    assert ended["ring"].usage.completion_tokens == 40
    assert ended["ring"].usage.kv.evicted == 60 + 39 - 64


def test_one_prompt_is_prefilled_once_and_each_request_gets_its_own_cache():
    engine = toy.ToyEngine()
    loop = Loop(engine)
    prompt = (1,) * 60
    kinds = {"full": KVChoice("full"), "ring": RING, "small": KVChoice("streaming", budget=16)}
    loop.submit(*(request(name, *prompt, max_tokens=9, kv=kv, salt="one") for name, kv in kinds.items()))
    ended = ends(run(loop))
    assert {name: end.usage.kv.capacity for name, end in ended.items()} == {"full": 64, "ring": 64, "small": 16}
    chunks = [line.work.start for line in engine.log if isinstance(line, toy.Chunk)]
    assert chunks == list(range(0, 60, 8))


def test_a_failed_prefill_fails_all_its_requests_and_a_failed_insertion_one():
    loop = Loop(toy.ToyEngine())
    loop.submit(request("prefill-a", salt="one"), request("b", salt="one"))
    assert {name: type(end) for name, end in ends(run(loop)).items()} == {"prefill-a": Failed, "b": Failed}
    loop.submit(*(request(name, salt="two") for name in ("insert-a", "b", "compress-c", "d")))
    ended = ends(run(loop))
    assert {name for name, end in ended.items() if isinstance(end, Failed)} == {"insert-a", "compress-c"}
    assert ended["b"].usage.completion_tokens == ended["d"].usage.completion_tokens == 5


def test_forced_tokens_come_first_and_sampled_tokens_follow_from_them():
    one = Request("a", (1, 2, 3), SamplingParams(max_tokens=5), forced=(50, 60))
    assert tokens(run(Loop(toy.ToyEngine()), one), "a") == [50, 60, 19, 38, 76]  # 6 + 110 = 116 mod 97


class Workload:
    """Random shapes and requests, and the steps at which each is submitted and cancelled."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.limits = toy.limits(
            slots=random.randint(1, 4),
            lanes=random.randint(1, 3),
            chunk=random.choice([1, 3, 8]),
            capacity=random.choice([16, 64]),
            context=random.choice([48, 4096]),
        )
        self.families = [
            [self._request(f"{random.choice(['ok', 'cached', 'ok', 'nan', 'insert'])}{i}")] for i in range(12)
        ]
        for family in self.families:
            family += [self._sharing(family[0], f"ok-{family[0].id}-{i}") for i in range(random.choice([0, 0, 1, 3]))]
        self.requests = [one for family in self.families for one in family]
        self.arrival = {family[0].id: random.randint(0, 60) for family in self.families}
        self.cancel = {one.id: random.randint(0, 90) for one in self.requests if random.random() < 0.3}

    def _request(self, name: str) -> Request:
        random = self.random
        limit = random.randint(1, 30)
        sampling = SamplingParams(
            max_tokens=limit,
            min_tokens=random.randint(0, min(3, limit)),
            ignore_eos=random.random() < 0.3,
            stop_token_ids=tuple(random.sample(range(toy.MODULUS), 1)),
        )
        prompt = tuple(random.randrange(toy.MODULUS) for _ in range(random.randint(1, 40)))
        kv = random.choice([None, KVChoice("full", budget=40), KVChoice("streaming", budget=16)])
        if kv is not None:
            kv = replace(kv, turns=random.choice(["reread", "continue"]))
        forced = tuple(random.choices(range(toy.MODULUS), k=random.choice([0, 0, limit // 2])))
        return Request(name, prompt, sampling, kv, tuple(random.sample(range(toy.MODULUS), 4)), forced)

    def _sharing(self, one: Request, name: str) -> Request:
        other = replace(self._request(name), tokens=one.tokens)
        goes_on = any(each.kv is not None and each.kv.turns == "continue" for each in (one, other))
        return replace(other, kv=one.kv) if goes_on else other

    def run(self) -> tuple[toy.ToyEngine, list[Event], list[str]]:
        """Return the engine with its log, all events, and ids in order of submission."""
        engine, events, order, step = toy.ToyEngine(self.limits), [], [], 0
        loop = Loop(engine)
        while step <= 90 or not loop.idle:
            for family in self.families:
                if self.arrival[family[0].id] == step:
                    order += [one.id for one in family]
                    events += loop.submit(*family)
            for name in (name for name, when in self.cancel.items() if when == step):
                events += loop.cancel(name)
            events += loop.step()
            step += 1
            assert step < 10_000, "the loop is stuck"
        assert loop.stats() == Stats(0, 0, 0, self.limits.slots)
        assert not engine.slots
        return engine, events, order


def whole_answer(one: Request, limits: Limits) -> tuple[list[int], str]:
    """Return all tokens of a request that is not cancelled, and why it ends, from the unlimited answer."""
    sampling, prompt = one.sampling, len(one.tokens)
    kv = one.kv or RING
    bounds = [sampling.max_tokens, max(1, limits.context - prompt)]
    if kv.policy == "full":
        bounds.append(max(0, (kv.budget or limits.capacity) - prompt) + 1)
    limit = min(bounds)
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else one.eos)}
    unlimited, first = toy.answer(one.tokens, limit, one.forced), max(sampling.min_tokens, len(one.forced))
    stop = next((i for i, token in enumerate(unlimited) if token in stops and i >= first), None)
    return (unlimited, "length") if stop is None else (unlimited[: stop + 1], "stop")


@pytest.mark.parametrize("seed", range(200))
def test_a_random_workload_gives_the_answers_computed_by_hand(seed):
    workload = Workload(seed)
    engine, events, order = workload.run()

    by_request = defaultdict(list)
    for event in events:
        by_request[event.request_id].append(event)
    for one in workload.requests:
        *sampled, end = by_request[one.id]
        assert all(isinstance(event, Token) for event in sampled)
        whole, reason = whole_answer(one, workload.limits)
        got = [event.token for event in sampled]
        assert got == whole[: len(got)]
        match end:
            case Failed(kind="RequestFailed"):
                assert got == whole[:2] if one.id.startswith("nan") else one.id.startswith("insert")
            case Finished(reason="abort"):
                assert one.id in workload.cancel
            case Finished(reason=why):
                assert (got, why) == (whole, reason)
        if isinstance(end, Finished):
            assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (len(one.tokens), len(got))

    assert_first_come_first_served(engine, order)
    assert_no_request_waits_for_two_chunks(engine)


def assert_first_come_first_served(engine: toy.ToyEngine, order: list[str]) -> None:
    """Check that prompts begin in order of submission, except those that ended before they began."""
    begun = [line.request_id for line in engine.log if isinstance(line, toy.Begun)]
    assert begun == [name for name in order if name in set(begun)]


def assert_no_request_waits_for_two_chunks(engine: toy.ToyEngine) -> None:
    chunks = 0  # since the last sampling step, while a request was running
    for line in engine.log:
        if isinstance(line, toy.Chunk):
            chunks += line.stalls
            assert chunks <= 1
        elif line == "sample":
            chunks = 0
