import time

import pytest
import torch

from ringkv.bench import probe as module
from ringkv.bench.probe import Ceiling, Machine, ProbeCase, matrix_cases, raise_rates, read_cases, seconds
from ringkv.plan.floor import Rates

CPU = torch.device("cpu")


def test_a_call_is_timed_in_seconds() -> None:
    assert 0.02 <= seconds(lambda: time.sleep(0.02), CPU) < 2


def test_a_run_never_lowers_a_rate() -> None:
    pauses = iter([0.03, 0.03, 0.03, 0.001, 0.001, 0.001, 0.05, 0.05, 0.05])

    case, rates, seen = ProbeCase("sleep", 1.0, lambda: time.sleep(next(pauses))), dict[str, float](), []
    for _ in range(3):
        raise_rates(rates, [case], CPU)
        seen.append(rates["sleep"])
    assert seen[0] <= 1 / 0.03
    assert seen[0] < seen[1] == seen[2] <= 1 / 0.001


def test_every_read_case_touches_all_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_pack", lambda weight: True)  # without a C++ compiler, the reference unpacks
    found = {case.name: case.run() for case in read_cases(1 << 20, CPU)}
    for name, rows in (("linear of 1 row", 1), ("our linear of 1 row", 1), ("our linear of 4 rows", 4)):
        assert torch.equal(found[name], torch.full((rows, 128), 4096, dtype=torch.bfloat16))  # type: ignore[arg-type]
    assert found["matrix times vector"].tolist() == [4096.0] * 128  # type: ignore[attr-defined]


def test_our_own_products_are_probed_if_weights_can_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCTS", ((2, 64, 32), (2, 3, 5)))
    monkeypatch.setattr(module, "can_pack", lambda weight: weight.shape[1] == 64)
    theirs, ours, odd, *_ = matrix_cases(CPU)
    assert [case.name for case in (theirs, ours, odd)] == [
        "[2, 64] x [64, 32]",
        "our [2, 64] x [64, 32]",
        "[2, 3] x [3, 5]",
    ]
    torch.testing.assert_close(theirs.run(), ours.run())


def test_a_product_counts_a_multiplication_and_an_addition_for_each_weight_and_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PRODUCTS", ((2, 3, 5),))
    monkeypatch.setattr(module, "ATTENTION", ((2, 3, 4),))
    product, attention = matrix_cases(CPU)
    assert product.amount == 2 * 2 * 3 * 5
    assert product.run().shape == (2, 5)  # type: ignore[attr-defined]
    assert attention.amount == 2 * 6 * (2 * 4 + 2 * 4)  # heads, pairs, a score and a weighted value
    assert attention.run().shape == (1, 2, 3, 4)  # type: ignore[attr-defined]


def test_a_rate_is_the_maximum_over_the_next_smaller_size_and_all_larger_ones() -> None:
    ceiling = Ceiling({10: {"a": 9.0, "b": 8.0}, 100: {"a": 5.0, "b": 6.0}, 1000: {"a": 4.0}}, {"m": 7.0})
    assert ceiling.rates(500) == Rates(6.0, 7.0)
    assert ceiling.rates(99) == Rates(9.0, 7.0)
    assert ceiling.rates(5) == Rates(9.0, 7.0)
    assert ceiling.rates(10**6) == Rates(4.0, 7.0)


def test_a_machine_is_probed_with_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AMOUNTS", (1 << 16, 1 << 17))
    monkeypatch.setattr(module, "PRODUCTS", ((2, 3, 5),))
    monkeypatch.setattr(module, "ATTENTION", ((1, 8, 4),))
    machine = Machine(CPU)
    machine.run()
    assert list(machine.ceiling.reading) == [1 << 16, 1 << 17]
    assert set(machine.ceiling.matrix) == {"[2, 3] x [3, 5]", "attention of 8 tokens, 1 heads of 4"}
    assert all(rate > 0 for cases in machine.ceiling.reading.values() for rate in cases.values())
