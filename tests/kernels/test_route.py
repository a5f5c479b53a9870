"""Routers against transformers' own, and each row against itself among others."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from ringkv.base.router import Router
from ringkv.kernels.route import route

pytestmark = pytest.mark.usefixtures("compiled")
SETTINGS = {
    "num_experts": 16,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "hidden_size": 32,
    "norm_topk_prob": False,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "group_limited_greedy",
}
CASES = {
    "softmax": (Qwen3MoeTopKRouter, {}, Router(16, 4, normalised=False)),
    "normalised": (MixtralTopKRouter, {}, Router(16, 4)),
    "greedy": (DeepseekV2TopkRouter, {"topk_method": "greedy"}, Router(16, 4, normalised=False, scale=2.5)),
    "grouped": (DeepseekV2TopkRouter, {}, Router(16, 4, normalised=False, scale=2.5, groups=4, kept_groups=2)),
    "corrected": (
        DeepseekV3TopkRouter,
        {"norm_topk_prob": True},
        Router(16, 4, is_sigmoid=True, scale=2.5, groups=4, kept_groups=2, best=2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_experts_and_weights_are_those_of_transformers(name: str) -> None:
    kind, changes, router = CASES[name]
    theirs = kind(SimpleNamespace(**{**SETTINGS, **changes}))
    torch.nn.init.normal_(theirs.weight)
    correction = torch.randn(16) / 4 if router.is_sigmoid else None
    if correction is not None:
        theirs.e_score_correction_bias.copy_(correction)
    x = torch.randn(200, 32)
    with torch.inference_mode():
        logits, weights, chosen = theirs(x)
        found = route(logits.float(), correction, router)
    order = chosen.argsort(-1)
    assert torch.equal(found.experts, chosen.gather(1, order))
    torch.testing.assert_close(found.weights, weights.gather(1, order))


@pytest.mark.parametrize("name", CASES)
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(name: str) -> None:
    router = CASES[name][2]
    logits = torch.randn(37, 32)
    many = route(logits, None, router, gates=1)
    torch.testing.assert_close(many.gates, logits[:, 16:17].sigmoid())
    for row in range(len(logits)):
        alone = route(logits[row : row + 1], None, router, gates=1)
        assert all(torch.equal(one[0], all_rows[row]) for one, all_rows in zip(alone, many, strict=True))


def test_of_equal_scores_the_first_experts_are_chosen() -> None:
    found = route(torch.zeros(3, 8), None, Router(8, 3))
    assert found.experts.tolist() == [[0, 1, 2]] * 3
