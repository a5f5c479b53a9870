import json
from itertools import pairwise
from pathlib import Path
from random import Random

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
