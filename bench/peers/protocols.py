"""protocols: the engines that are measured together, their prompts, and the repetitions.

    same          equal numbers of requests: lone prompts for prefill, then several requests decoding together
    equal_bytes   each engine's largest batch in equal bytes of keys and values
    resident      each engine alone in memory, in a fresh process

If the engines do not fit into memory together, they run in groups. ringkv is in every group, so that a ratio is always
between engines that alternated.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bench.journal import Journal
from bench.peers.cells import Protocol
from bench.peers.engines import ENGINES, REFERENCE, Demand, PeerEngine
from bench.peers.pool import Pool
from bench.peers.trial import Participant, Schedule, Trial, needed_bytes, weight_bytes
from bench.peers.workload import fitting

Prompts = Callable[[int, int], list[list[int]]]
"""(number of prompts, tokens of each) -> token ids. More prompts extend the list and do not change its beginning."""


@dataclass(frozen=True)
class Bench:
    """The inputs of all protocols. engines: name -> weights. base: the demand, except requests and prompt length."""

    engines: Mapping[str, Path]
    base: Demand
    prompts: Prompts
    pool: Pool
    journal: Journal
    schedule: Schedule
    memory: int  # bytes for all processes together
    report: Callable[[str], None] = print

    def trial(self, name: str, prompts: Sequence[list[int]]) -> Trial:
        return Trial(name, prompts, self.pool, self.journal, self.schedule, self.report)

    def participant(self, name: str, need: Callable[[int], Demand], batch: int | None = None) -> Participant:
        return Participant(ENGINES[name], self.engines[name], need, batch)


class Lengths(NamedTuple):
    """Prompt lengths in tokens, of lone requests and of several together."""

    alone: Sequence[int]
    together: Sequence[int]


def same(bench: Bench, lengths: Lengths, counts: Sequence[int], rounds: int, batch_rounds: int) -> None:
    """Measure lone requests `rounds` times, and larger counts `batch_rounds` times."""
    largest = replace(bench.base, prompt=max(*lengths.alone, *lengths.together), requests=max(counts))
    several = [requests for requests in counts if requests > 1]
    for turn in range(rounds):
        for length in lengths.alone if 1 in counts else ():
            _grouped(bench, f"alone-{turn}", length, [1], bench.prompts(rounds, length)[turn:], largest)
    for turn in range(batch_rounds if several else 0):
        for length in lengths.together:
            _grouped(bench, f"together-{turn}", length, several, bench.prompts(max(several), length), largest)


def _grouped(
    bench: Bench, name: str, length: int, counts: Sequence[int], prompts: Sequence[list[int]], largest: Demand
) -> None:
    def need(engine: PeerEngine) -> Callable[[int], Demand]:
        if engine.loads_once:
            return lambda _: largest
        return lambda requests: replace(bench.base, prompt=length, requests=requests)

    needs = {member: need(ENGINES[member]) for member in bench.engines}
    sizes = {
        member: needed_bytes(ENGINES[member], needs[member](max(counts)), weight_bytes(path))
        for member, path in bench.engines.items()
    }
    for group in groups(sizes, bench.memory, REFERENCE):
        participants = [bench.participant(member, needs[member]) for member in group]
        bench.trial(f"{name}/{length}/{'+'.join(group)}", prompts).run(participants, counts)


def groups(sizes: Mapping[str, int], memory: int, always: str) -> list[list[str]]:
    """Pack names in order into groups of at most `memory` bytes, with `always` in each. One too large goes alone."""
    available = memory - sizes.get(always, 0)
    packed: list[list[str]] = [[]]
    left = available
    for name, size in sizes.items():
        if name == always:
            continue
        if size > left and packed[-1]:
            packed.append([])
            left = available
        packed[-1].append(name)
        left -= size
    lead = [always] if always in sizes else []
    return [lead + group for group in packed if lead or group]


def equal_bytes(bench: Bench, cache_bytes: int, length: int, rounds: int) -> None:
    """Measure each engine with the largest batch that fits `cache_bytes`; engines that fit no request are left out."""
    needs = {
        name: replace(bench.base, prompt=length, requests=requests, cache_bytes=cache_bytes)
        for name in bench.engines
        if (requests := batch_in(ENGINES[name], replace(bench.base, prompt=length), cache_bytes))
    }
    sizes = {name: needed_bytes(ENGINES[name], need, weight_bytes(bench.engines[name])) for name, need in needs.items()}
    largest = max((need.requests for need in needs.values()), default=0)
    for turn in range(rounds if largest else 0):
        for group in groups(sizes, bench.memory, REFERENCE):
            participants = [bench.participant(name, _always(needs[name]), needs[name].requests) for name in group]
            bench.trial(f"bytes-{turn}/{length}/{'+'.join(group)}", bench.prompts(largest, length)).run(
                participants, [largest]
            )


def _always(need: Demand) -> Callable[[int], Demand]:
    return lambda _: need


def batch_in(engine: PeerEngine, need: Demand, cache_bytes: int) -> int:
    """Return the most requests whose keys and values, including staging, never exceed `cache_bytes`."""
    token = need.token_bytes * engine.shares(need.head_dim)
    fits = (engine.peak_tokens(replace(need, requests=requests)) * token <= cache_bytes for requests in count(1))
    return next(requests for requests, does in enumerate(fits) if not does)


def resident(bench: Bench, length: int, requests: int, starts: int) -> None:
    """Measure peak memory and start time of one engine after another. The first start may compile graphs."""
    need = _always(replace(bench.base, prompt=length, requests=requests))
    prompts = bench.prompts(requests, length)
    for name in bench.engines:
        for turn in range(1, starts):
            bench.trial(f"start-{turn}/{length}/{name}", prompts).start(bench.participant(name, need), requests)
        bench.trial(f"resident/{length}/{name}", prompts).run([bench.participant(name, need)], [requests])
        bench.pool.close()


class Run(NamedTuple):
    """A kind of measurement. fields: the arguments that identify it. measure: runs the trials within a context."""

    protocol: Protocol
    fields: tuple[str, ...]
    measure: Callable[[Namespace, Bench, int], None]


def chosen(args: Namespace) -> Run:
    return RUNS["equal-bytes" if args.equal_bytes else "resident" if args.resident else "same"]


def _lengths(wanted: Sequence[int], context: int) -> list[int]:
    return sorted({fitting(length, context) for length in wanted})


def _measure_same(args: Namespace, bench: Bench, context: int) -> None:
    lengths = Lengths(_lengths(args.prompts, context), _lengths(args.batch_prompts, context))
    same(bench, lengths, args.requests, args.rounds, args.batch_rounds)


def _measure_equal_bytes(args: Namespace, bench: Bench, context: int) -> None:
    for length in _lengths(args.prompts, context):
        equal_bytes(bench, args.equal_bytes, length, args.batch_rounds)


def _measure_resident(args: Namespace, bench: Bench, context: int) -> None:
    for length in _lengths(args.prompts, context):
        resident(bench, length, max(args.requests), args.rounds)


TURNS = ("turns", "steps")
RUNS: Mapping[Protocol, Run] = {
    run.protocol: run
    for run in (
        Run("same", ("batch_prompts", "requests", "rounds", "batch_rounds", *TURNS), _measure_same),
        Run("equal-bytes", ("equal_bytes", "batch_rounds", *TURNS), _measure_equal_bytes),
        Run("resident", ("requests", "rounds", *TURNS), _measure_resident),
    )
}
