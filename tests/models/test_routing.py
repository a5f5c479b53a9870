"""Routers against transformers' own."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from ringkv.models.experts import Router
from ringkv.models.routing import route

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
        Router(16, 4, "sigmoid", scale=2.5, groups=4, kept_groups=2, best=2, correction=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_experts_and_weights_are_those_of_transformers(name: str) -> None:
    kind, changes, router = CASES[name]
    theirs = kind(SimpleNamespace(**{**SETTINGS, **changes}))
    torch.nn.init.normal_(theirs.weight)
    correction = torch.randn(16) / 4 if router.correction else None
    if correction is not None:
        theirs.e_score_correction_bias.copy_(correction)
    x = torch.randn(200, 32)
    with torch.inference_mode():
        logits, weights, chosen = theirs(x)
        ours, shares = route(router, logits.float(), correction)
    order = chosen.argsort(-1)
    assert torch.equal(ours, chosen.gather(1, order))
    torch.testing.assert_close(shares, weights.gather(1, order))
