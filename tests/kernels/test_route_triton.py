"""The Triton kernel of `route` in Triton's interpreter on the CPU, against the torch reference."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.base.router import Router
from ringkv.kernels.route import reference
from tests.kernels.interpreted import route as route_on

SETTINGS = {  # the router, and gates
    "softmax": (Router(16, 4, normalised=False), 0),
    "normalised": (Router(60, 4), 1),
    "grouped": (Router(40, 6, normalised=False, scale=16.0, groups=8, kept_groups=3), 0),
    "corrected": (Router(64, 8, is_sigmoid=True, scale=2.5, groups=8, kept_groups=4, best=2), 0),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_it_selects_the_experts_of_the_reference(pool: ProcessPoolExecutor, name: str) -> None:
    router, gates = SETTINGS[name]
    logits = torch.randn(9, router.experts + 4)[:, : router.experts + 2]  # rows of a larger tensor
    correction = torch.randn(router.experts) / 4 if router.is_sigmoid else None
    found = pool.submit(route_on, logits, correction, router, gates).result()
    want = reference(logits, correction, router, gates)
    assert torch.equal(found[0], want[0])
    torch.testing.assert_close(found[1:], want[1:])


def test_of_equal_scores_the_first_experts_are_selected(pool: ProcessPoolExecutor) -> None:
    found = pool.submit(route_on, torch.zeros(2, 40), None, *SETTINGS["grouped"]).result()
    assert found[0].tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("name", ["softmax", "corrected"])
def test_nan_in_a_row_stays_there(pool: ProcessPoolExecutor, name: str) -> None:
    router, gates = SETTINGS[name]
    logits = torch.randn(3, router.experts)
    logits[1, 5] = float("nan")
    experts, weights, _ = pool.submit(route_on, logits, None, router, gates).result()
    want = reference(logits, None, router, gates)
    assert torch.equal(experts[[0, 2]], want[0][[0, 2]])
    assert weights[1].isnan().any()
    assert all(len({*row}) == router.chosen and max(row) < router.experts for row in experts.tolist())
