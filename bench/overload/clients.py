"""clients: requests at a given rate from many clients at once, whatever becomes of the requests before."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from time import perf_counter
from typing import Any, Literal

from bench.overload.http import Reply, answer, send, send_and_leave
from bench.peers.workload import prompts
from ringkv.residency.locate import locate
from ringkv.text.tokenizer import Tokenizer

COMPLETIONS = "/v1/completions"
LENGTHS = (24, 120, 480)  # tokens of prompts; the longest fits in one chunk
ANSWERS = (8, 24, 48)  # tokens of answers
GREEDY = {"temperature": 0, "ignore_eos": True}

Kind = Literal["ask", "leave", "malform"]


@dataclass(frozen=True)
class Question:
    """A greedy completion of a known length."""

    prompt: str
    tokens: int

    def body(self, stream: bool) -> dict[str, Any]:
        return {"prompt": self.prompt, "max_tokens": self.tokens, "stream": stream} | GREEDY


@dataclass(frozen=True)
class Mix:
    """leaving, malformed: shares of all requests."""

    leaving: float = 0.2
    malformed: float = 0.05

    def kind(self, random: Random) -> Kind:
        number = random.random()
        if number < self.malformed:
            return "malform"
        return "leave" if number < self.malformed + self.leaving else "ask"


def texts(model: str, count: int, lengths: Sequence[int]) -> list[str]:
    """Return `count` stretches of real text of about each of these token lengths, all different."""
    tokenizer = Tokenizer.from_directory(locate(model))
    stretches = map(iter, prompts(tokenizer, count, sum(lengths)))
    return [tokenizer.decode(list(islice(stretch, length))) for stretch in stretches for length in lengths]


def questions(prompts: Sequence[str]) -> list[Question]:
    return [Question(prompt, ANSWERS[number % len(ANSWERS)]) for number, prompt in enumerate(prompts)]


# Path and body of requests that must get a 4xx. None sends a GET.
MALFORMED: Sequence[tuple[str, bytes | Mapping[str, Any] | None]] = (
    (COMPLETIONS, b""),
    (COMPLETIONS, b"{"),
    (COMPLETIONS, b"\xff\xfe{}"),
    (COMPLETIONS, b"[" * 10_000),
    (COMPLETIONS, {"prompt": {"text": "a"}}),
    (COMPLETIONS, {"prompt": "a", "max_tokens": -1}),
    (COMPLETIONS, {"prompt": "a", "temperature": 1e39}),
    (COMPLETIONS, {"prompt": "a", "priority": 1000}),
    (COMPLETIONS, {"prompt": "a", "model": "another"}),
    (COMPLETIONS, {"prompt": "a", "guided_regex": "("}),
    (COMPLETIONS, {"prompt": [10**9]}),
    (COMPLETIONS, {"prompt": " word" * 100_000}),
    (COMPLETIONS, None),
    ("/v1/chat/completions", {"messages": "hello"}),
    ("/v1/nothing", {}),
)


LONGEST_STAY = 3.0  # seconds until a client that disconnects has left
NO_CLIENT = 1e-9


@dataclass(frozen=True)
class Sent:
    """A request and its reply. error: the exception of a connection that failed."""

    kind: Kind
    question: Question | None
    reply: Reply
    error: str | None = None


@dataclass(frozen=True)
class Plan:
    """rate: requests per second of all clients together; their arrivals are a Poisson process."""

    clients: int
    rate: float
    seconds: float
    mix: Mix = Mix()
    seed: int = 0


async def run(port: int, questions: Sequence[Question], plan: Plan) -> list[Sent]:
    """Send the load. Returns all requests, once the last is answered."""
    ends = perf_counter() + plan.seconds
    each = await asyncio.gather(*(_client(port, questions, plan, number, ends) for number in range(plan.clients)))
    return [sent for mine in each for sent in mine]


async def _client(port: int, questions: Sequence[Question], plan: Plan, number: int, ends: float) -> list[Sent]:
    random = Random(f"{plan.seed} {number}")
    running: list[asyncio.Task[Sent]] = []
    while True:
        wait = random.expovariate(max(plan.rate / plan.clients, NO_CLIENT))
        if perf_counter() + wait > ends:
            break
        await asyncio.sleep(wait)
        running.append(asyncio.create_task(_send(port, random.choice(questions), plan.mix.kind(random), random)))
    return list(await asyncio.gather(*running))


async def _send(port: int, question: Question, kind: Kind, random: Random) -> Sent:
    body = question.body(stream=random.random() < 0.7)
    try:
        match kind:
            case "ask":
                return Sent(kind, question, await send(port, COMPLETIONS, body))
            case "leave":
                events, seconds = random.randint(1, question.tokens), random.uniform(0, LONGEST_STAY)
                return Sent(kind, question, await send_and_leave(port, COMPLETIONS, body, events, seconds))
            case "malform":
                return Sent(kind, None, await send(port, *random.choice(MALFORMED)))
    except OSError as error:
        return Sent(kind, question, Reply(), f"{type(error).__name__}: {error}")


async def in_turn(port: int, questions: Sequence[Question], at_once: int, seconds: float) -> float:
    """Return the requests answered per second if so many clients each send the next when their last is answered."""
    started, done = perf_counter(), 0

    async def client(number: int) -> None:
        nonlocal done
        random = Random(number)
        while perf_counter() - started < seconds:
            reply = await send(port, COMPLETIONS, random.choice(questions).body(stream=True))
            assert reply.complete, reply
            done += 1

    await asyncio.gather(*map(client, range(at_once)))
    return done / (perf_counter() - started)


async def alone(port: int, questions: Sequence[Question], beside: int) -> tuple[dict[Question, str], list[float]]:
    """Return the answer to each question, and the seconds between its tokens.

    Meanwhile `beside` other requests run, so decode steps have the shape that they have under load.
    """

    async def fill() -> None:
        while True:
            await send(port, COMPLETIONS, Question("The quick brown fox", 100_000).body(stream=True))

    others = [asyncio.create_task(fill()) for _ in range(beside)]
    try:
        await asyncio.sleep(1)
        answers: dict[Question, str] = {}
        gaps: list[float] = []
        for question in questions:
            reply = await send(port, COMPLETIONS, question.body(stream=True))
            assert reply.complete, reply
            answers[question] = reply.text
            gaps += reply.gaps
        return answers, gaps
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def wrong(sent: Sequence[Sent], answers: Mapping[Question, str]) -> list[Sent]:
    """Return the complete answers that differ from the one alone, and answers that were cut."""
    answered = (request for request in sent if request.kind == "ask" and request.reply.status == 200)
    return [
        request
        for request in answered
        if request.question is not None
        and not (request.reply.complete and answer(request.reply) == answers[request.question])
    ]
