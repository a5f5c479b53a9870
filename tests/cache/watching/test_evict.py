import torch
from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.kv import KVChoice
from ringkv.cache.layouts import layout
from ringkv.cache.watching.review import fixed

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=6)


@given(spans=SPANS, due=st.integers(40, 90), positions=st.lists(st.integers(0, 90), min_size=1, max_size=30))
def test_sinks_protected_and_recent_tokens_are_fixed(
    spans: list[tuple[int, int]], due: int, positions: list[int]
) -> None:
    protect = tuple((start, start + length) for start, length in spans)
    choice = KVChoice("scissorhands", sinks=3, recent=8, review=5, protect=protect)
    plan = layout(KVChoice("scissorhands", sinks=3, recent=8, review=5), 50, 64)
    want = [
        p < 3 or due - 8 <= p < due or any(start <= p < stop for start, stop in protect if p < 50) for p in positions
    ]
    assert fixed(torch.tensor([positions], dtype=torch.int32), plan, due, choice).tolist() == [want]


def test_the_work_does_not_grow_with_the_spans() -> None:
    """Each operation takes microseconds, in every layer and review."""
    protect = tuple((start, start + 1) for start in range(100, 3000, 2))
    choice = KVChoice("scissorhands", budget=4096, review=5, recent=8, protect=protect)
    plan = layout(KVChoice("scissorhands", budget=4096, review=5, recent=8), 4000, 4096)
    calls = []

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            calls.append(func)
            return func(*args, **(kwargs or {}))

    with Counting():
        fixed(torch.arange(2048, dtype=torch.int32).expand(8, -1), plan, 4001, choice)
    assert len(calls) < 30
