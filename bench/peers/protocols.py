"""protocols: which engines are measured together, with which prompts, how many times.

    same          as many requests for all: lone prompts for prefill, then several requests decoding together
    equal_bytes   as many requests as each engine holds in so many bytes of keys and values
    resident      each engine alone in memory, started afresh
    retrieval     one prompt after another, the same for all, and what they answer

Engines that do not fit into memory together play one group after another, and ringkv plays in every group: a ratio is
always of two that took turns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bench.peers.engines import ENGINES, REFERENCE, Engine, Need
from bench.peers.journal import Journal
from bench.peers.play import Play, Seat, Turns, needed_bytes, weight_bytes
from bench.peers.pool import Pool

Prompts = Callable[[int, int], list[list[int]]]
"""(how many, of how many tokens) -> token ids; the first ones are always the same."""


@dataclass(frozen=True)
class Bench:
    """What all protocols need. `engines`: name -> its weights; `base`: a need, of which requests and prompt vary."""

    engines: Mapping[str, Path]
    base: Need
    prompts: Prompts
    pool: Pool
    journal: Journal
    turns: Turns
    memory: int  # bytes that all processes together may hold
    say: Callable[[str], None] = print

    @property
    def decoders(self) -> "Bench":
        """Without the engines that differ in prefill alone."""
        return replace(
            self, engines={name: path for name, path in self.engines.items() if not ENGINES[name].prefill_only}
        )

    def play(self, name: str, prompts: Sequence[list[int]]) -> Play:
        return Play(name, prompts, self.pool, self.journal, self.turns, self.say)

    def seat(self, name: str, need: Callable[[int], Need], own_batch: int | None = None) -> Seat:
        return Seat(ENGINES[name], self.engines[name], need, own_batch)


class Lengths(NamedTuple):
    """Of prompts, in tokens: of lone requests, and of several together."""

    alone: Sequence[int]
    together: Sequence[int]


def same(bench: Bench, lengths: Lengths, counts: Sequence[int], rounds: int, batch_rounds: int) -> None:
    """Lone requests `rounds` times, all larger counts `batch_rounds` times."""
    largest = replace(bench.base, prompt=max(*lengths.alone, *lengths.together), requests=max(counts))
    several = [requests for requests in counts if requests > 1]
    for turn in range(rounds):
        for length in lengths.alone if 1 in counts else ():
            _grouped(bench, f"alone-{turn}", length, [1], bench.prompts(rounds, length)[turn:], largest)
    for turn in range(batch_rounds if several else 0):
        for length in lengths.together:
            _grouped(bench.decoders, f"together-{turn}", length, several, bench.prompts(max(several), length), largest)


def _grouped(
    bench: Bench, name: str, length: int, counts: Sequence[int], prompts: Sequence[list[int]], largest: Need
) -> None:
    def need(engine: Engine) -> Callable[[int], Need]:
        if engine.loads_once:
            return lambda _: largest
        return lambda requests: replace(bench.base, prompt=length, requests=requests)

    needs = {member: need(ENGINES[member]) for member in bench.engines}
    sizes = {
        member: needed_bytes(ENGINES[member], needs[member](max(counts)), weight_bytes(path))
        for member, path in bench.engines.items()
    }
    for group in groups(sizes, bench.memory, REFERENCE):
        seats = [bench.seat(member, needs[member]) for member in group]
        bench.play(f"{name}/{length}/{_together(group)}", prompts).run(seats, counts)


def _together(group: Sequence[str]) -> str:
    """A play is known by who played: how many fit into memory together may be another number the next time."""
    return "+".join(group)


def groups(sizes: Mapping[str, int], memory: int, always: str) -> list[list[str]]:
    """Names packed in order into groups of at most `memory` in all, `always` in each; one too large goes alone."""
    room = memory - sizes.get(always, 0)
    packed: list[list[str]] = [[]]
    left = room
    for name, size in sizes.items():
        if name == always:
            continue
        if size > left and packed[-1]:
            packed.append([])
            left = room
        packed[-1].append(name)
        left -= size
    lead = [always] if always in sizes else []
    return [lead + group for group in packed if lead or group]


def equal_bytes(bench: Bench, cache_bytes: int, length: int, rounds: int) -> None:
    """Every engine with the largest batch that its keys and values allow; who cannot hold one is left out."""
    bench = bench.decoders
    needs = {
        name: replace(bench.base, prompt=length, requests=requests, cache_bytes=cache_bytes)
        for name in bench.engines
        if (requests := batch_in(ENGINES[name], replace(bench.base, prompt=length), cache_bytes))
    }
    sizes = {name: needed_bytes(ENGINES[name], need, weight_bytes(bench.engines[name])) for name, need in needs.items()}
    largest = max((need.requests for need in needs.values()), default=0)
    for turn in range(rounds if largest else 0):
        for group in groups(sizes, bench.memory, REFERENCE):
            seats = [bench.seat(name, _always(needs[name]), needs[name].requests) for name in group]
            bench.play(f"bytes-{turn}/{length}/{_together(group)}", bench.prompts(largest, length)).run(
                seats, [largest]
            )


def _always(need: Need) -> Callable[[int], Need]:
    return lambda _: need


def batch_in(engine: Engine, need: Need, cache_bytes: int) -> int:
    """The most requests whose keys and values never take more than `cache_bytes`, whatever is staged counted."""
    token = need.token_bytes * engine.shares(need.head_dim)
    fits = (engine.holds(replace(need, requests=requests)) * token <= cache_bytes for requests in count(1))
    return next(requests for requests, does in enumerate(fits) if not does)


def resident(bench: Bench, length: int, requests: int, starts: int) -> None:
    """Peak memory and start time, one engine after another; the first start of all may build what later ones load."""
    need = replace(bench.base, prompt=length, requests=requests)
    prompts = bench.prompts(requests, length)
    for name in bench.decoders.engines:
        for turn in range(1, starts):
            bench.play(f"start-{turn}/{length}/{name}", prompts).start(bench.seat(name, _always(need)), requests)
        bench.play(f"resident/{length}/{name}", prompts).run([bench.seat(name, _always(need))], [requests])
        bench.pool.close()


def retrieval(bench: Bench, prompts: Sequence[list[int]], length: int) -> None:
    """What each engine says to prompts of at most `length` tokens."""
    need = replace(bench.base, prompt=length, requests=1)
    sizes = {name: needed_bytes(ENGINES[name], need, weight_bytes(path)) for name, path in bench.engines.items()}
    for place, tokens in enumerate(prompts):
        for group in groups(sizes, bench.memory, REFERENCE):
            seats = [bench.seat(name, _always(need)) for name in group]
            bench.play(f"needle-{length}/{place}/{_together(group)}", [tokens]).run(seats, [1])
