"""score_chart: the score of each cell against what it holds, for one comparison."""

from collections import defaultdict
from collections.abc import Callable
from math import exp, isfinite, log2

from ringkv.evaluation.bootstrap import Interval
from ringkv.evaluation.cells import policy_of
from ringkv.evaluation.report.chart import Chart, Point, Series
from ringkv.evaluation.report.scale import clusters
from ringkv.evaluation.sentences import line
from ringkv.evaluation.verdict import Comparison, Verdict
from ringkv.plan.units import show_bytes

DODGE = 11.0  # pixels


def score_chart(found: Comparison, entry_bytes: int | None) -> Chart | None:
    """Return a chart with a series for each policy; None if no cell has a share of the full cache's score.

    entry_bytes: of one entry in all layers; None plots shares of the prompt.
    """
    by_policy: dict[str, list[Point]] = defaultdict(list)
    has_bytes = entry_bytes is not None and all(one.entries for one in found.verdicts)
    value = _perplexity if found.is_loss else _score
    for one in found.verdicts:
        if one.share is not None:
            held = one.entries * (entry_bytes or 0) if has_bytes else 100 * one.held
            by_policy[policy_of(one.cell)].append(_point(one, held, one.share.through(value(found))))
    if not by_policy:
        return None
    full = value(found)(100.0)
    size = f", {show_bytes(found.full_entries * (entry_bytes or 0))}" if has_bytes else ""
    return Chart(
        alt=f"{_Y[found.is_loss]} of {len(found.verdicts)} caches against what they hold, as the verdicts list it",
        series=[Series(policy, points) for policy, points in sorted(by_policy.items())],
        x_label=f"{'bytes held per request' if has_bytes else 'share of the prompt that is held'} (log scale)",
        y_label=_Y[found.is_loss],
        x_ticks=[some[len(some) // 2] for some in clusters(one.x for some in by_policy.values() for one in some)],
        number=show_bytes if has_bytes else _percent,
        x_of=log2,
        reference=(f"full cache: {full:.3g}{size}", full),
        dodge=DODGE,
    )


_Y = {False: "score, percent", True: "perplexity, lower is better"}


def _percent(share: float) -> str:
    return f"{share:.0f}%" if share >= 10 else f"{share:.1f}%"


def _point(one: Verdict, held: float, value: Interval) -> Point:
    ends = f" [{value.low:.1f}, {value.high:.1f}]" if isfinite(value.low) else ""
    about = f"{one.cell}: {value.mean:.1f}{ends}; {line(one)}"
    return Point(held, value.mean, value.low, value.high, about, is_hollow=one.outcome == "few")


def _score(found: Comparison) -> Callable[[float], float]:
    """Return the score of a share. The end of an interval of shares may be a score that no answers have."""
    return lambda share: min(share * found.full, 100.0)


def _perplexity(found: Comparison) -> Callable[[float], float]:
    return lambda share: exp(-found.full) * 100 / share
