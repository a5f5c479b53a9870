import toy

from bench import flat
from bench.flat import Flat, serve, summary
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams


def test_every_request_is_served_and_counted_at_its_end() -> None:
    engine = toy.ToyEngine(toy.limits(slots=3))
    requests = (Request(f"{n}", (1, 2, 3), SamplingParams(max_tokens=2, ignore_eos=True)) for n in range(20))
    series = list(serve(engine, requests))
    assert len(series) == 20
    assert min(series) > 0
    assert engine.slots == {}


def test_the_remainder_is_the_peak_less_the_known_parts() -> None:
    engine = toy.ToyEngine(toy.limits(slots=2, capacity=10, entry_bytes=5, held_bytes=130))
    engine.weight_bytes = 1000  # type: ignore[attr-defined]
    series = [1500] * 99 + [1600] + [1550] * 50 + [1700] * 9 + [1640]
    found = summary(engine, series)
    assert found == Flat(weights=1000, slots=100, staging=30, early=1600, late=1640, peak=1700)
    assert (found.known, found.remainder, found.drift) == (1130, 570, 40)


def test_the_table_shows_parts_and_stages() -> None:
    mib = flat.MiB
    stage = {"when": "import torch", "total": 3 * mib, "own": 2 * mib, "files": mib, "largest": {"libc.so": mib}}
    known = {"weights": 9 * mib, "slots": 0, "staging": 0, "early": 10 * mib, "late": 10 * mib, "peak": 12 * mib}
    text = flat.shown([known, stage])
    assert "| remainder | 3 |" in text
    assert "| import torch | 3 | 2 | 1 | libc.so 1 |" in text


def test_sizes_are_kept_as_bytes() -> None:
    assert flat._in_bytes({"when": "import torch", "total": 3, "largest": {"libc.so": 1}}) == {
        "when": "import torch",
        "total_bytes": 3,
        "largest": {"libc.so": 1},
    }
