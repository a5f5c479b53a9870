import asyncio
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from bench.overload.clients import (
    COMPLETIONS,
    MALFORMED,
    Mix,
    Plan,
    Question,
    Sent,
    alone,
    in_turn,
    questions,
    run,
    wrong,
)
from bench.overload.http import Reply, answer, metrics, send, send_and_leave
from bench.overload.verdict import Bounds, Check, Resources, Run, checks, growth, is_failure, p99
from ringkv.server.options import LoadOptions
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import channel

ASKED = [Question("abc", 5), Question("xy", 9)]
RESOURCES = Resources(8, 1, 0, 3, 20, 12)
BOUNDS = Bounds(queue=16, http_bytes=100, engine_bytes=1000, step_s=0.010, chunk_s=0.090)
REFUSED = Reply(503, {"retry-after": "2"}, b'{"error": {"code": "queue_full"}}')


@pytest.fixture
def busy(tokenizer: Tokenizer) -> Iterator[Served]:
    """A server of 4 slots that takes 2 ms per step, with a queue of 3."""
    with serving(channel(seconds=0.002), tokenizer, None, load=LoadOptions(max_queue=3)) as served:
        yield served


def port(served: Served) -> int:
    return int(served.root.rpartition(":")[2])


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_reads_whole_answers_and_when_each_token_came(served: Served, stream: bool) -> None:
    reply = asyncio.run(send(port(served), COMPLETIONS, ASKED[0].body(stream)))
    assert (reply.status, answer(reply), reply.complete) == (200, "abcab", True)
    assert len(reply.gaps) == (4 if stream else 0)


def test_the_client_reads_errors_and_their_headers(served: Served) -> None:
    reply = asyncio.run(send(port(served), COMPLETIONS, {"prompt": "a", "model": "other"}))
    assert (reply.status, reply.code, reply.headers["content-type"]) == (404, "model_not_found", "application/json")


def test_a_client_that_leaves_frees_its_slot(slow: Served) -> None:
    reply = asyncio.run(send_and_leave(port(slow), COMPLETIONS, Question("ab", 400).body(True), events=2, seconds=9))
    assert (len(reply.arrivals), reply.complete) == (2, False)
    slow.wait_until_free()


@pytest.mark.parametrize(("path", "body"), MALFORMED)
def test_every_malformed_request_gets_a_4xx(served: Served, path: str, body: object) -> None:
    assert 400 <= asyncio.run(send(port(served), path, body)).status < 500


def test_answers_alone_are_taken_while_the_other_slots_run(busy: Served) -> None:
    async def measure() -> tuple[dict[Question, str], list[float]]:
        return await alone(port(busy), ASKED, beside=3)

    answers, gaps = asyncio.run(measure())
    assert answers == {ASKED[0]: "abcab", ASKED[1]: "xyxyxyxyx"}
    assert len(gaps) == 4 + 8
    assert {one.tokens for one in busy.engine.submitted} > {tuple(b"abc"), tuple(b"xy")}


def test_a_load_of_twice_the_sustainable_rate_is_survived(busy: Served) -> None:
    async def measure() -> tuple[list[Sent], dict[str, float]]:
        rate = await in_turn(port(busy), ASKED, at_once=4, seconds=0.5)
        sent = await run(port(busy), ASKED, Plan(clients=16, rate=3 * rate, seconds=1.5))
        while (after := await metrics(port(busy)))["ringkv_slots_free"] < 4:
            await asyncio.sleep(0.01)
        return sent, after

    sent, after = asyncio.run(measure())
    answers = {ASKED[0]: "abcab", ASKED[1]: "xyxyxyxyx"}
    done = Run(sent, len(wrong(sent, answers)), RESOURCES, RESOURCES, [3], [90] * 10, [900] * 10)
    failed = [check for check in checks(done, replace(BOUNDS, step_s=1)) if not check.passed]
    assert not failed
    assert after["ringkv_queue_requests"] == 0
    assert any(one.reply.code == "queue_full" for one in sent)
    assert {one.kind for one in sent} == {"ask", "leave", "malform"}
    assert wrong(sent, dict.fromkeys(ASKED, "another answer"))


def verdict(**changes: object) -> dict[str, Check]:
    good = Run([], 0, RESOURCES, RESOURCES, [0, 16], [90] * 10, [900] * 10)
    return {check.name: check for check in checks(replace(good, **changes), BOUNDS)}


def failing(**changes: object) -> list[str]:
    return [name for name, check in verdict(**changes).items() if not check.passed]


def test_a_quiet_run_passes_every_check() -> None:
    assert failing() == []


def test_each_fault_fails_its_own_check() -> None:
    broken = Sent("ask", None, Reply(500))
    late = Sent("ask", None, Reply(200, arrivals=[0, 1, 2]))
    assert failing(sent=[broken]) == ["5xx except deliberate 503s, lost connections"]
    assert failing(sent=[Sent("malform", None, Reply(200))]) == ["malformed requests without a 4xx"]
    assert failing(wrong=1) == ["answers that differ from the one alone"]
    assert failing(after=replace(RESOURCES, tasks=4)) == ["leaked: slots, lanes, tasks, descriptors"]
    assert (
        verdict(after=replace(RESOURCES, tasks=4))["leaked: slots, lanes, tasks, descriptors"].measured
        == "tasks 3 -> 4"
    )
    assert failing(queued=[17]) == ["requests in the queue, at most"]
    assert failing(http_bytes=[101] * 10) == ["memory of the HTTP process"]
    assert failing(engine_bytes=[*[900] * 8, 960, 960]) == ["growth of the engine process"]
    assert failing(sent=[late]) == ["p99 between two tokens"]


@pytest.mark.parametrize(
    ("reply", "kind", "expected"),
    [
        (REFUSED, "ask", False),
        (replace(REFUSED, headers={}), "ask", True),
        (replace(REFUSED, body=b'{"error": {"code": "engine_died"}}'), "ask", True),
        (Reply(0), "ask", True),
        (Reply(0), "leave", False),
        (Reply(500), "leave", True),
        (Reply(400), "malform", False),
    ],
)
def test_only_a_503_that_says_when_to_retry_is_deliberate(reply: Reply, kind: str, expected: bool) -> None:
    assert is_failure(Sent(kind, None, reply)) == expected


def test_growth_leaves_out_the_first_fifth() -> None:
    assert growth([1, 1, 100, 100, 105, 105, 105, 105, 110, 110]) == pytest.approx(0.1)


def test_the_late_percentile_is_over_all_gaps() -> None:
    quick = Sent("ask", None, Reply(200, arrivals=[n / 100 for n in range(199)]))
    slow = Sent("ask", None, Reply(200, arrivals=[0, 1, 2, 3]))
    assert p99([quick]) == pytest.approx(0.01)
    assert p99([quick, slow]) == pytest.approx(1.0)


def test_the_mix_has_the_given_shares() -> None:
    random, mix = Random(0), Mix()
    kinds = [mix.kind(random) for _ in range(20_000)]
    assert kinds.count("leave") / 20_000 == pytest.approx(0.2, abs=0.01)
    assert kinds.count("malform") / 20_000 == pytest.approx(0.05, abs=0.005)
    assert len(questions(["a", "b", "a"])) == 3
