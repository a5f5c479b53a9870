import json
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import pytest

from bench.traffic.traces import FILES, Lengths, NoTrace, arrivals, fitting, scaled


def trace(folder: Path, rows: list[dict[str, object]]) -> None:
    (folder / FILES["mooncake"]).write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(ms: float, prompt: int, output: int, *parts: int) -> dict[str, object]:
    return {"timestamp": ms, "input_length": prompt, "output_length": output, "hash_ids": list(parts)}


def test_a_trace_is_squeezed_to_the_rate_and_keeps_its_order_and_its_bursts(tmp_path: Path) -> None:
    trace(tmp_path, [row(0, 10, 20, 1), row(1, 11, 21, 1, 2), row(3001, 12, 22, 3), row(4001, 13, 23, 4)])
    found = arrivals("mooncake", folder=tmp_path)(2.0, 2.0)
    assert [(one.prompt, one.output, one.parts) for one in found] == [
        (10, 20, (1,)),
        (11, 21, (1, 2)),
        (12, 22, (3,)),
        (13, 23, (4,)),
    ]
    gaps = [after.arrival - before.arrival for before, after in pairwise(found)]
    assert [gap / gaps[2] for gap in gaps] == pytest.approx([0.001, 3, 1])
    assert found[-1].arrival == pytest.approx(2.0 * 3 / 4)  # the last of four arrives one mean gap before the end


def test_requests_of_one_time_are_spread_until_the_next_time() -> None:
    rows = [Lengths(at, 10, 20) for at in (0.0, 0.0, 0.0, 3.0, 6.0, 6.0)]
    found = scaled(rows, rate=1.0, seconds=6.0)
    gaps = [after.arrival - before.arrival for before, after in pairwise(found)]
    assert [gap / gaps[0] for gap in gaps] == pytest.approx([1, 1, 1, 3, 1.5])


def test_the_rate_holds_even_where_the_trace_is_busy_or_quiet() -> None:
    rows = [Lengths(at, 10, 20) for at in (0.0, 1.0, 2.0, 30.0, 60.0, 90.0)]
    for rate, seconds in ((0.1, 20.0), (0.5, 4.0), (1.0, 5.0), (2.0, 300.0)):
        found = scaled(rows, rate, seconds)
        assert len(found) == rate * seconds
        assert 0 == found[0].arrival <= found[-1].arrival < seconds


def test_a_short_trace_is_repeated_from_its_beginning() -> None:
    found = scaled([Lengths(0.0, 10, 20), Lengths(1.0, 11, 21)], rate=1.0, seconds=5.0)
    assert [one.prompt for one in found] == [10, 11, 10, 11, 10]
    gaps = [after.arrival - before.arrival for before, after in pairwise(found)]
    assert gaps == pytest.approx([1.0] * 4)


def test_shrinking_divides_lengths_and_keeps_which_pieces_are_shared(tmp_path: Path) -> None:
    trace(tmp_path, [row(0, 1024, 8, 1, 2), row(1000, 600, 1, 1, 3)])
    found = arrivals("mooncake", shrink=8, folder=tmp_path)(1.0, 2.0)
    assert [(one.prompt, one.output, one.parts) for one in found] == [(128, 2, (1, 2)), (75, 2, (1, 3))]


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoTrace, match=r"azure-code .*azure2023_code_first600s\.jsonl"):
        arrivals("azure-code", folder=tmp_path)


def test_rates_and_bursts_follow_the_windows(tmp_path: Path) -> None:
    """Windows alternate between 10 and 30 requests per second, the first kind regular and the second bursty."""
    lines = ["ts_s,active_clients,total_rate_rps,rate_weighted_cv"]
    lines += [f"{600 * n},1,{(10, 30)[n // 6 % 2]},{(0.2, 3.0)[n // 6 % 2]}" for n in range(144)]
    (tmp_path / FILES["servegen"]).write_text("\n".join(lines) + "\n")
    found = arrivals("servegen", folder=tmp_path)(20.0, 480.0)  # 24 windows of 20 s at 10/s and 30/s
    windows = [[one.arrival for one in found if int(one.arrival // 20) == place] for place in range(24)]
    quiet, busy = windows[::2], windows[1::2]
    assert sum(map(len, quiet)) == pytest.approx(12 * 20 * 10, rel=0.05)
    assert sum(map(len, busy)) == pytest.approx(12 * 20 * 30, rel=0.25)  # bursts make the count uncertain
    assert max(map(spread, quiet)) < 0.4
    assert fmean(map(spread, busy)) > 1.5


def spread(times: list[float]) -> float:
    gaps = [after - before for before, after in pairwise(times)]
    return pstdev(gaps) / fmean(gaps)


def test_generated_lengths_are_as_long_as_sharegpts_on_average(tmp_path: Path) -> None:
    lines = ["ts_s,active_clients,total_rate_rps,rate_weighted_cv", *(f"{600 * n},1,10,1" for n in range(144))]
    (tmp_path / FILES["servegen"]).write_text("\n".join(lines) + "\n")
    found = arrivals("servegen", folder=tmp_path)(50.0, 480.0)
    # Lengths above 1,024 tokens are cut, so the means are a little lower than 161 and 338.
    assert 120 < fmean(one.prompt for one in found) < 161
    assert 280 < fmean(one.output for one in found) < 338


def test_requests_that_are_too_long_in_any_respect_are_left_out() -> None:
    random = Random(0)
    every = [Lengths(0.0, random.randint(1, 2000), random.randint(1, 500)) for _ in range(300)]
    kept = fitting(every, context=1800, prompt=1700, output=400)
    assert kept
    assert all(one.prompt <= 1700 and one.output <= 400 and one.prompt + one.output < 1800 for one in kept)
    assert all(
        one.prompt > 1700 or one.output > 400 or one.prompt * 1.02 + one.output + 16 > 1800
        for one in set(every) - set(kept)
    )
