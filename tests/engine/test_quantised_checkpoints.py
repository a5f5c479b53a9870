"""Engines from checkpoints of AWQ, GPTQ and compressed-tensors, against the dequantised model in transformers."""

import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.base.progress import silent
from ringkv.base.ranks import Rank
from ringkv.engine.build import build
from ringkv.engine.load import load
from ringkv.kernels.formats import unpack, unpack_gated
from ringkv.models.config import load_config
from ringkv.plan.footprint import weight_bytes
from ringkv.plan.report import find_shape
from ringkv.weights.files import SINGLE
from tests.engine import kept, tiny
from tests.engine.test_golden import EXPERTS, LATENT
from tests.engine.test_ranks import check
from tests.weights.tiny_quantised import IN_4_BITS, PERMUTED, QUANTISERS, Made

LAYERS, GROUP = 2, 32
PARTS = {
    "qkv": tuple(f"self_attn.{name}_proj" for name in "qkv"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class Saved(NamedTuple):
    made: dict[str, Made]  # by layer
    theirs: Any  # transformers' model with the dequantised matrices


def saved(folder: Path, name: str, group: int | None = GROUP, **changes: Any) -> Saved:
    """Quantise the layers of a tiny Llama; None: rows are one group."""
    theirs = tiny.save(folder, "Llama", num_hidden_layers=LAYERS, vocab_size=224, **changes)
    tensors, made = load_file(folder / SINGLE), {}
    for module in [key.removesuffix(".weight") for key in tensors if key.endswith("_proj.weight")]:
        rows, columns = tensors.pop(f"{module}.weight").shape
        made[module] = QUANTISERS[name].make(rows, columns, group or columns)
        tensors |= {f"{module}.{suffix}": part.contiguous() for suffix, part in made[module].tensors.items()}
        theirs.get_submodule(module).weight.data.copy_(made[module].weight)
    save_file(tensors, folder / SINGLE)
    set_quantiser(folder, name)
    return Saved(made, theirs)


def set_quantiser(folder: Path, name: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTISERS[name].settings}))


def matrices(folder: Path, weights: Any, rank: Rank = Rank()) -> dict[str, Tensor]:  # noqa: B008 - frozen
    """Return the last layer's matrices as an engine in bfloat16 stores them, float32 [out, in]."""
    device = torch.device("cpu")
    layer = load(
        folder,
        load_config(folder).of_rank(rank, "none" if rank.count == 1 else "memory"),
        torch.bfloat16,
        device,
        silent,
        weights,
        rank,
    ).layers[-1]
    assert {layer[name].dtype for name in PARTS} == {torch.int8 if weights == "int8" else torch.uint8}
    return {name: (unpack_gated if name == "gate_up" else unpack)(layer[name]) for name in PARTS}


def whole(made: dict[str, Made], name: str, field: str = "weight") -> Tensor:
    """Return what the parts of a matrix of the last layer have, stacked."""
    return torch.cat([getattr(made[f"model.layers.{LAYERS - 1}.{part}"], field) for part in PARTS[name]])


@pytest.mark.parametrize("name", QUANTISERS)
def test_logits_are_those_of_the_dequantised_model_in_transformers(name: str, tmp_path: Path) -> None:
    theirs, tokens = saved(tmp_path, name).theirs, torch.randint(3, 224, (40,)).tolist()
    engine = build(tiny.config(tmp_path, kv=KVChoice("full", budget=64)))
    found = torch.cat(list(engine.prompt_logits(tokens, rows=40)))
    torch.testing.assert_close(found, kept.logits(theirs, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Phi3", {"pad_token_id": 0}),
        ("Qwen3Moe", EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]}),
        ("DeepseekV3", LATENT | {"q_lora_rank": 64}),
    ],
)
def test_fused_layers_experts_and_latents_give_the_logits_of_the_dequantised_twin(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    tiny.save(tmp_path, kind, vocab_size=224, **{**changes, "num_hidden_layers": LAYERS})
    tensors, asked = load_file(tmp_path / SINGLE), tiny.request(torch.randint(3, 224, (40,)).tolist())
    quantised = dict(tensors)
    for module in [name.removesuffix(".weight") for name in tensors if re.search(r"_proj(_with_mqa)?\.weight$", name)]:
        rows, columns = quantised.pop(f"{module}.weight").shape
        made = QUANTISERS["packed-asymmetric"].make(rows, columns, columns if columns % GROUP else GROUP)
        tensors[f"{module}.weight"] = made.weight
        quantised |= {f"{module}.{suffix}": part.contiguous() for suffix, part in made.tensors.items()}
    save_file(tensors, tmp_path / SINGLE)
    want = tiny.stage(build(tiny.config(tmp_path)), asked)
    save_file(quantised, tmp_path / SINGLE)
    set_quantiser(tmp_path, "packed-asymmetric")
    assert torch.equal(tiny.stage(build(tiny.config(tmp_path)), asked), want)


@pytest.mark.parametrize("name", IN_4_BITS)
def test_an_int4_engine_has_the_integers_and_scales_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    """Minimums, -scale * zero, are rounded to float16, which has 11 bits."""
    made = saved(tmp_path, name).made
    for matrix, found in matrices(tmp_path, "int4").items():
        scale, zero = whole(made, matrix, "scale"), whole(made, matrix, "zero")
        assert ((found - whole(made, matrix)).abs() <= scale * zero * 2**-11 + 1e-7).all(), matrix


def test_an_int8_engine_has_the_integers_and_scales_of_rows(tmp_path: Path) -> None:
    """The format has no -128, which becomes -127."""
    made = saved(tmp_path, "signed", group=None).made
    for matrix, found in matrices(tmp_path, "int8").items():
        assert torch.equal(found, whole(made, matrix, "scale") * whole(made, matrix, "q").clamp(min=-127)), matrix


@pytest.mark.parametrize("name", ["gptq-8", "packed-8", "signed-asymmetric"])
def test_an_int8_engine_has_the_integers_scales_and_zeros_of_groups(name: str, tmp_path: Path) -> None:
    """Scales of these checkpoints are exact in float16."""
    made = saved(tmp_path, name).made
    for matrix, found in matrices(tmp_path, "int8").items():
        exact = whole(made, matrix, "scale").double() * (whole(made, matrix, "q") - whole(made, matrix, "zero"))
        torch.testing.assert_close(found.double(), exact, atol=1e-9, rtol=2**-20)


@pytest.mark.parametrize("name", ["awq", *PERMUTED])
def test_int8_quantises_other_checkpoints_again_without_rounding_to_bfloat16(name: str, tmp_path: Path) -> None:
    made = saved(tmp_path, name).made
    for matrix, found in matrices(tmp_path, "int8").items():
        weight = whole(made, matrix)
        step = weight.abs().amax(-1, keepdim=True) / 127
        assert ((found - weight).abs() <= 0.5001 * step).all(), matrix


@pytest.mark.parametrize("name", PERMUTED)
def test_int4_quantises_permuted_groups_again_and_says_so(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = saved(tmp_path, name).made
    with caplog.at_level(logging.WARNING):
        found = matrices(tmp_path, "int4")["down"]
    assert "14 matrices are permuted" in caplog.text
    off, weight = found - whole(made, "down"), whole(made, "down")
    assert 0.01 < off.norm() / weight.norm() < 0.15


@pytest.mark.parametrize("name", ["awq", "gptq", "packed-asymmetric"])
def test_ranks_have_their_slices_of_an_int4_engines_matrices(name: str, tmp_path: Path) -> None:
    saved(tmp_path, name, num_attention_heads=4, num_key_value_heads=2)
    alone, shares = matrices(tmp_path, "int4"), [matrices(tmp_path, "int4", Rank(index, 2)) for index in range(2)]
    for matrix in ("output", "down"):
        assert torch.equal(torch.cat([share[matrix] for share in shares], dim=1), alone[matrix])
    gates = torch.cat([share["gate_up"].chunk(2)[0] for share in shares])
    assert torch.equal(gates, alone["gate_up"].chunk(2)[0])


@pytest.mark.parametrize("name", ["awq", "gptq-act-order", "packed-asymmetric", "signed"])
def test_ranks_compute_what_one_rank_computes(name: str, tmp_path: Path) -> None:
    saved(tmp_path, name, num_attention_heads=4, num_key_value_heads=2)
    check(tmp_path, 2)


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_engine_and_plan_have_the_bytes_of_the_unquantised_model(weights: Any, tmp_path: Path) -> None:
    (plain := tmp_path / "plain").mkdir()
    tiny.save(plain, "Llama", num_hidden_layers=LAYERS, vocab_size=224)
    saved(tmp_path, "awq")
    first, second = (build(tiny.config(one, weights=weights, dtype="bfloat16")) for one in (plain, tmp_path))
    assert first.weight_bytes == second.weight_bytes
    stored = "bfloat16" if weights == "bf16" else weights
    first, second = (weight_bytes(find_shape(str(one)), stored) for one in (plain, tmp_path))
    assert first == second
