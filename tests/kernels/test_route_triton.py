"""The Triton kernel of `route` in Triton's interpreter on the CPU, against the torch reference."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.route import reference
from tests.kernels.interpreted import route as route_on

# experts, chosen, is_sigmoid, normalised, scale, groups, kept_groups, best, gates
SETTINGS: dict[str, tuple[Any, ...]] = {
    "softmax": (16, 4, False, False, 1.0, 1, 1, 1, 0),
    "normalised": (60, 4, False, True, 1.0, 1, 1, 1, 1),
    "grouped": (40, 6, False, False, 16.0, 8, 3, 1, 0),
    "corrected": (64, 8, True, True, 2.5, 8, 4, 2, 0),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_it_selects_the_experts_of_the_reference(pool: ProcessPoolExecutor, name: str) -> None:
    settings = SETTINGS[name]
    logits = torch.randn(9, settings[0] + 4)[:, : settings[0] + 2]  # rows of a larger tensor
    correction = torch.randn(settings[0]) / 4 if settings[2] else None
    found = pool.submit(route_on, logits, correction, *settings).result()
    want = reference(logits, correction, *settings)
    assert torch.equal(found[0], want[0])
    torch.testing.assert_close(found[1:], want[1:])


def test_of_equal_scores_the_first_experts_are_selected(pool: ProcessPoolExecutor) -> None:
    found = pool.submit(route_on, torch.zeros(2, 40), None, *SETTINGS["grouped"]).result()
    assert found[0].tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("name", ["softmax", "corrected"])
def test_nan_in_a_row_stays_there(pool: ProcessPoolExecutor, name: str) -> None:
    settings = SETTINGS[name]
    logits = torch.randn(3, settings[0])
    logits[1, 5] = float("nan")
    experts, weights, _ = pool.submit(route_on, logits, None, *settings).result()
    want = reference(logits, None, *settings)
    assert torch.equal(experts[[0, 2]], want[0][[0, 2]])
    assert weights[1].isnan().any()
    assert all(len({*row}) == settings[1] and max(row) < settings[0] for row in experts.tolist())
