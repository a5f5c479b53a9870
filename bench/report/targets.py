"""targets: the performance targets, and the figures of each kind of machine. A missed target is not removed."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from bench.peers.cells import Protocol
from bench.report import peers, traffic
from bench.report.peers import EVICTS, FULL, KEEP_ALL, LLAMA, OPENVINO, OURS, PEERS, VLLM, choose, closest
from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest, table
from ringkv.plan.footprint import read_bytes, token_bytes
from ringkv.plan.shapes import known

Found = Sequence[float | None]  # one figure per case; None if it was not measured
Measured = Callable[[Sequence[ResultRow], str], Found]  # takes the table and the name of a machine
Show = Callable[[float], str]
MIDDLE = (4096, 8192)  # prompt tokens
OTHERS = tuple(engine for engine in KEEP_ALL if engine not in OPENVINO)
SMOLLM2, QWEN = MODELS
SHORT_TRACES = ("azure-conv", "azure-code", "servegen")
MIXED = "chunk of 512 and 8 slots:"


class Target(NamedTuple):
    claim: str
    bound: float
    measured: Measured
    show: Show
    at_most: bool = False

    def row(self, rows: Sequence[ResultRow]) -> tuple[str, ...]:
        bound = f"{'≤' if self.at_most else '≥'}{self.show(self.bound)}"
        return self.claim, bound, *(self.verdict(self.measured(rows, machine)) for machine in MACHINES)

    def is_met(self, rows: Sequence[ResultRow]) -> bool:
        """Return whether a case was measured, and none on any machine misses the target."""
        found = [figure for machine in MACHINES for figure in self.measured(rows, machine) if figure is not None]
        return bool(found) and not any(map(self.misses, found))

    def misses(self, figure: float) -> bool:
        return figure > self.bound if self.at_most else figure < self.bound

    def verdict(self, found: Found) -> str:
        """Return the lowest and the highest figure, and the number of cases that miss the target."""
        figures = [figure for figure in found if figure is not None]
        if not figures:
            return ""
        ends = dict.fromkeys(self.show(end(figures)) for end in (min, max))
        missed = sum(map(self.misses, figures))
        result = f"**missed in {missed}/{len(figures)}**" if missed else "met"
        partly = f" ({len(figures)}/{len(found)})" if len(figures) < len(found) else ""
        return f"{' to '.join(ends)}, {result}{partly}"


def targets_table(rows: Sequence[ResultRow]) -> str:
    return _table(_targets(), rows)


def missed_targets(rows: Sequence[ResultRow]) -> str:
    """Return the table of the targets that are not met, and a sentence with the number of all others."""
    targets = _targets()
    left = [target for target in targets if not target.is_met(rows)]
    met = len(targets) - len(left)
    return f"{_table(left, rows)}\n\nMet wherever measured: {met} others (`python -m bench.report targets`)."


def _table(targets: Sequence[Target], rows: Sequence[ResultRow]) -> str:
    return table(("", "target", *MACHINES.values()), [target.row(rows) for target in targets])


def _targets() -> Sequence[Target]:
    return (*_peers(), *_traffic(), *_ourselves())


def _peers() -> Iterator[Target]:
    several = {SMOLLM2: (8192, (4, 8, 16)), QWEN: (16384, (4, 8))}
    bounds = {SMOLLM2: (5.0, 3.0, 1.2), QWEN: (None, None, 1.2)}
    named = {"llama.cpp": LLAMA, "vLLM": VLLM, "OpenVINO, evicting": EVICTS}
    for model, (prompt, requests) in several.items():
        prefix = f"{MODELS[model]}, {requests[0]} to {requests[-1]} x {prompt // 1024}k: decode over"
        for (name, engines), bound in zip(named.items(), bounds[model], strict=True):
            if bound:
                yield Target(f"{prefix} {name}", bound, _ratios(model, (OURS,), engines, (prompt,), requests), _times)
        yield Target(f"{prefix} our full cache, of the ratio of bytes", 0.85, _gains(model, prompt, requests), _percent)
    for name, engines, bound in (("llama.cpp", LLAMA, 7.0), ("vLLM", VLLM, 4.3), ("OpenVINO", OPENVINO, 2.0)):
        measured = _ratios(SMOLLM2, (OURS,), engines, (8192,), (None,), protocol="equal-bytes")
        yield Target(f"SmolLM2-135M, 8k, equal cache bytes: decode over {name}", bound, measured, _times)
    for model, name in MODELS.items():
        full = _ratios(model, (FULL,), KEEP_ALL, MIDDLE, (1, 4, 8, 16))
        yield Target(f"{name}, 1 to 16 x 4k, 8k, nothing evicted: decode over the best peer", 1.0, full, _times)
        short = _ratios(model, (OURS, FULL), PEERS, (512,), (1,))
        yield Target(f"{name}, 1 x 512: decode over the best peer", 1.0, short, _times)
        for other, engines, bound in (("OpenVINO", (*OPENVINO, *EVICTS), 0.95), ("the best other peer", OTHERS, 1.3)):
            measured = _ratios(model, (OURS, FULL), engines, MIDDLE, (1,), "prefill")
            yield Target(f"{name}, 4k, 8k: prefill over {other}", bound, measured, _times)
    yield Target("SmolLM2-135M, 8 x 8k: peak memory of peers that keep all, less ours", 0, _memory, _mebibytes)


def _traffic() -> Iterator[Target]:
    clients = "short prompts, 16 and 64 clients:"
    for family, bound in (("llama.cpp", 1.5), ("vLLM", 1.5), ("OpenVINO", 1.2)):
        yield Target(f"{clients} throughput over {family}", bound, partial(traffic.speed_over, family=family), _times)
    first = traffic.first_token_over_best
    yield Target(f"{clients} p99 of first tokens over the best peer's", 1.0, first, _times, at_most=True)
    for claim, bound, workloads in (("Azure's and ServeGen's", 1.5, SHORT_TRACES), ("Mooncake's", 2.0, ("mooncake",))):
        measured = partial(traffic.goodput_over_best, workloads=workloads)
        yield Target(f"{claim} arrivals: goodput over the best peer", bound, measured, _times)


def _ourselves() -> Iterator[Target]:
    of = _figures
    yield Target("decode step, of its floor", 0.8, of("limits", "share", what="decode", weights="bfloat16"), _percent)
    yield Target(
        "prefill of 4k, of its floor", 0.75, of("limits", "share", what="prefill", weights="bfloat16"), _percent
    )
    yield Target(
        "first token of a second turn, faster than with an empty prefix store", 10.0, of("turns", "sooner"), _times
    )
    for claim, what, bound in (
        ("10 prompts of 30 tokens: sooner than before", "10 prompts of 30 tokens, until each has a token", 4.0),
        ("chunk of 512 and 8 slots: two passes over one", f"{MIXED} two passes (before) and one (now)", 1.25),
    ):
        yield Target(claim, bound, of("short", "short_ratio", what=what), _times)
    generate = of("startup", "first_s", command="ringkv generate")
    for claim, bound, measured, show in (
        ("`ringkv generate`, warm: first token", 4.0, generate, "{:.1f} s".format),
        ("token selection, of prefill", 0.02, of("limits", "of_prefill"), _percent),
        ("this commit over 099e118: prefill of 2k", 1.02, partial(_beside, metric="prefill_ratio"), "{:.3f}x".format),
        ("this commit over 099e118: decode step", 1.02, partial(_beside, metric="step_ratio"), "{:.3f}x".format),
    ):
        yield Target(claim, bound, measured, show, at_most=True)


def _ratios(
    model: str,
    ours: Sequence[str],
    others: Sequence[str],
    prompts: Sequence[int],
    requests: Sequence[int | None],
    metric: str = "decode",
    protocol: Protocol = "same",
) -> Measured:
    """Measure the ratio to the closest of the others, for each prompt length and number of requests."""

    def measured(rows: Sequence[ResultRow], machine: str) -> Iterator[float | None]:
        found = peers.cells(rows, machine, model)
        for prompt in prompts:
            for n in requests:
                pair = closest(*(choose(found, names, prompt, n, protocol) for names in (ours, others)), metric)
                yield pair and pair.ratio

    return lambda rows, machine: list(measured(rows, machine))


def _gains(model: str, prompt: int, requests: Sequence[int]) -> Measured:
    """Measure the speedup over our full cache as a share of the ratio of bytes a step reads: weights, live entries."""
    shape = known(model)

    def bytes_read(requests: int, kept: int) -> int:
        return read_bytes(shape, "bfloat16") + requests * kept * token_bytes(shape, "bfloat16")

    def measured(rows: Sequence[ResultRow], machine: str) -> Iterator[float | None]:
        found = peers.cells(rows, machine, model)
        for n in requests:
            pair = closest(*(choose(found, (name,), prompt, n) for name in (OURS, FULL)))
            yield pair and pair.ratio * bytes_read(n, pair.ours.kept) / bytes_read(n, pair.other.kept)

    return lambda rows, machine: list(measured(rows, machine))


def _memory(rows: Sequence[ResultRow], machine: str) -> Found:
    """Return each peer's peak memory less ours, for the peer's smallest setting."""
    peaks = [peers.peak(peers.cells(rows, machine, SMOLLM2), engines) for engines in peers.FAMILIES.values()]
    ours, keeping = peaks[0], [set(engines) <= set(KEEP_ALL) for engines in peers.FAMILIES.values()]
    return [peak - ours if peak and ours else None for peak, is_whole in zip(peaks, keeping, strict=True) if is_whole]


def _figures(bench: str, metric: str, **columns: str) -> Measured:
    return lambda rows, machine: [
        one[metric] for one in figures(rows, bench, machine=machine, **columns) if metric in one
    ]


def _beside(rows: Sequence[ResultRow], machine: str, metric: str) -> Found:
    """Measure the time over an earlier commit's in the newest run of each model and number of slots."""
    found = figures(rows, "beside", machine=machine, before="099e118")
    return [one[metric] for one in newest(found, "model", "slots") if metric in one]


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def _percent(share: float) -> str:
    return f"{share:.1%}".replace(".0%", "%")


def _mebibytes(size: float) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
