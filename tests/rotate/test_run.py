"""Rotated checkpoints: the engine's logits from them, against transformers' from the originals."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ringkv.base.errors import InvalidRequest, UnsupportedModel
from ringkv.base.kv import KVChoice
from ringkv.base.progress import silent
from ringkv.engine.build import build
from ringkv.engine.load import load
from ringkv.kernels.formats import unpack, unpack_gated
from ringkv.kernels.mix import signs
from ringkv.models.config import load_config
from ringkv.rotate.choice import RotationChoice
from ringkv.rotate.job import Job
from ringkv.rotate.orthogonal import Orthogonal
from ringkv.rotate.run import rotate
from ringkv.weights.checkpoint import Checkpoint
from ringkv.weights.files import BYTE_GROUPS, GROUPS, INDEX, SINGLE
from tests.engine import kept, tiny
from tests.engine.test_golden import EXPERTS, GRANITE, LATENT

EXACT = RotationChoice("bf16")  # tensors keep the checkpoint's float32
MODELS = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2", {}),
    "heads of 80": ("Qwen3", {"head_dim": 80, "tie_word_embeddings": True}),
    "heads of 96": ("Llama", {"hidden_size": 88, "intermediate_size": 168, "num_attention_heads": 8, "head_dim": 96}),
    "sizes without a matrix": ("Llama", {"hidden_size": 70, "intermediate_size": 99, "num_attention_heads": 10}),
    "fused": ("Phi3", {"sliding_window": None, "pad_token_id": 0, "partial_rotary_factor": 0.5}),
    "scaled": ("Granite", GRANITE),
    "normalised after rotation": ("HunYuanDenseV1", {"attention_bias": True}),
    "some layers without rotary embedding": ("SmolLM3", {"pad_token_id": 0, "num_hidden_layers": 4}),
}


def logits(folder: Path, tokens: list[int], **changes: Any) -> Tensor:
    engine = build(tiny.config(folder, kv=KVChoice("full", budget=64), **changes))
    return torch.cat(list(engine.prompt_logits(tokens, rows=len(tokens))))


def tokens(count: int = 40) -> list[int]:
    found: list[int] = torch.randint(3, 199, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_rotated_model_has_the_originals_logits(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    want = kept.logits(tiny.save(tmp_path / "plain", kind, **changes), tokens())
    rotate(tmp_path / "plain", tmp_path / "rotated", EXACT)
    torch.testing.assert_close(logits(tmp_path / "rotated", tokens()), want, atol=5e-6, rtol=0)


def test_decode_steps_rotate_too(tmp_path: Path) -> None:
    want = kept.logits(tiny.save(tmp_path / "plain", "Qwen2"), tokens())
    rotate(tmp_path / "plain", tmp_path / "rotated", EXACT)
    engine = build(tiny.config(tmp_path / "rotated", kv=KVChoice("full", budget=64)))
    tiny.enter(engine, tiny.request(tokens()[:20]))
    _, found = tiny.decode(engine, 20, forced=tokens()[20:])
    torch.testing.assert_close(found, want[19:39], atol=5e-6, rtol=0)


def hadamard(size: int) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double())
    return matrix * signs(size, matrix) / size**0.5


def norm(self: Any, x: Tensor) -> Tensor:
    """Normalise in x's own dtype; transformers does so in float32."""
    found: Tensor = self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
    return found


def test_float64_differs_by_its_own_noise_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers runs the rotated weights, and hooks rotate what the engine rotates."""
    theirs = tiny.save(tmp_path, "Qwen2").double()
    monkeypatch.setattr(type(theirs.model.norm), "forward", norm)
    with torch.no_grad():
        want = theirs(torch.tensor([tokens()])).logits
        job = replace(Job.of(tmp_path, EXACT), dtype=torch.float64)
        rotated = job.tables() | {k: v for at in range(3) for k, v in job.layer(at, None).items()}
        theirs.load_state_dict(rotated)
        width, online = job.config.head_dim, job.rotated.online
        mixes = {
            "mlp.down_proj": torch.block_diag(*[hadamard(online.down)] * (160 // online.down)),
            "self_attn.o_proj": torch.kron(
                torch.block_diag(*[hadamard(online.heads)] * (6 // online.heads)), torch.eye(width).double()
            ),
        }
        for layer in theirs.model.layers:
            for name, mix in mixes.items():
                layer.get_submodule(name).register_forward_pre_hook(lambda _, x, mix=mix: (x[0] @ mix,))
        found = theirs(torch.tensor([tokens()])).logits
    assert (online.down, online.heads) == (32, 2)
    torch.testing.assert_close(found, want, atol=2e-14, rtol=0)


def test_the_bias_of_values_is_rotated_per_head(tmp_path: Path) -> None:
    tiny.save(tmp_path / "plain", "Qwen2")
    rotate(tmp_path / "plain", tmp_path / "rotated", EXACT)
    before, after = (load_file(tmp_path / one / SINGLE) for one in ("plain", "rotated"))
    name = "model.layers.1.self_attn.v_proj.bias"
    by_head = before[name].double().view(2, 32)
    want = Orthogonal.of(32).rotated(by_head).flatten().float()
    torch.testing.assert_close(after[name], want)
    assert not torch.allclose(after[name], before[name], atol=1e-3)
    assert torch.equal(after[name.replace("v_proj", "k_proj")], before[name.replace("v_proj", "k_proj")])


PARTS = {"qkv": ("q_proj", "k_proj", "v_proj"), "output": ("o_proj",), "down": ("down_proj",)}


@pytest.mark.parametrize(
    "choice", [RotationChoice("int4"), RotationChoice("int4", "row"), RotationChoice("int8")], ids=str
)
def test_the_engine_multiplies_with_the_files_integers(choice: RotationChoice, tmp_path: Path) -> None:
    tiny.save(tmp_path / "plain", "Llama", vocab_size=224)
    rotate(tmp_path / "plain", tmp_path / "rotated", choice)
    config, checkpoint = load_config(tmp_path / "rotated"), Checkpoint(tmp_path / "rotated")
    weights: Any = choice.weights
    layer = load(tmp_path / "rotated", config, torch.bfloat16, torch.device("cpu"), silent, weights).layers[-1]
    for name, weight in config.layer_weights(2).items():
        if weight.pack in ("matrix", "gated"):
            want = torch.empty(weight.shape)
            for part, rows in zip(weight.parts, want.split([one.shape[0] for one in weight.parts]), strict=True):
                assert checkpoint.has_integers(part.name)
                checkpoint.read_into(part.name, rows)
            assert torch.equal((unpack_gated if weight.pack == "gated" else unpack)(layer[name]), want)


def test_on_its_calibration_gptq_is_closer_to_the_original_than_rounding_to_nearest(tmp_path: Path) -> None:
    want = kept.logits(tiny.save(tmp_path / "plain", "Qwen2"), tokens())
    rotate(tmp_path / "plain", tmp_path / "nearest", RotationChoice("int4"))
    rotate(tmp_path / "plain", tmp_path / "gptq", RotationChoice("int4"), [tokens()])
    errors = [(logits(tmp_path / one, tokens()) - want).norm() / want.norm() for one in ("nearest", "gptq")]
    assert errors[1] < 0.5 * errors[0]
    assert errors[0] < 0.3


def stop_at(layer: int) -> Any:
    """Return a progress callback that is interrupted."""

    def tell(done: int, total: int, what: str) -> None:
        if done == layer and total:
            raise KeyboardInterrupt

    return tell


@pytest.mark.parametrize("windows", [[], [list(range(3, 43))] * 2], ids=["nearest", "gptq"])
def test_an_interrupted_run_goes_on_where_it_was(windows: list[list[int]], tmp_path: Path) -> None:
    plain, whole, resumed = (tmp_path / name for name in ("plain", "whole", "resumed"))
    tiny.save(plain, "Qwen2")
    rotate(plain, whole, RotationChoice("int4"), windows)
    with pytest.raises(KeyboardInterrupt):
        rotate(plain, resumed, RotationChoice("int4"), windows, stop_at(2))
    assert not resumed.exists()
    seen: list[int] = []
    rotate(plain, resumed, RotationChoice("int4"), windows, lambda done, total, _: seen.append(done) if total else None)
    assert seen == [2, 3]
    assert (resumed / SINGLE).read_bytes() == (whole / SINGLE).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "resumed", "whole"]


def test_another_choice_begins_again(tmp_path: Path) -> None:
    tiny.save(tmp_path / "plain", "Llama")
    with pytest.raises(KeyboardInterrupt):
        rotate(tmp_path / "plain", tmp_path / "out", RotationChoice("int4"), tell=stop_at(2))
    rotate(tmp_path / "plain", tmp_path / "out", EXACT)
    rotate(tmp_path / "plain", tmp_path / "again", EXACT)
    assert (tmp_path / "out" / SINGLE).read_bytes() == (tmp_path / "again" / SINGLE).read_bytes()


def test_another_config_begins_again(tmp_path: Path) -> None:
    tiny.save(tmp_path / "plain", "Llama")
    with pytest.raises(KeyboardInterrupt):
        rotate(tmp_path / "plain", tmp_path / "out", EXACT, tell=stop_at(2))
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    rotate(tmp_path / "plain", tmp_path / "out", EXACT)
    assert {one.dtype for one in load_file(tmp_path / "out" / SINGLE).values()} == {torch.bfloat16}


@pytest.mark.parametrize("tied", [False, True])
def test_shards_are_those_of_the_source(tied: bool, tmp_path: Path) -> None:
    model = tiny.save(tmp_path / "plain", "Llama", tie_word_embeddings=tied)
    shutil.rmtree(tmp_path / "plain")
    model.save_pretrained(tmp_path / "plain", max_shard_size="200KB")
    rotate(tmp_path / "plain", tmp_path / "out", RotationChoice("int4"))
    theirs, ours = (json.loads((tmp_path / one / INDEX).read_text())["weight_map"] for one in ("plain", "out"))
    assert len(set(theirs.values())) > 2
    assert set(theirs.values()) == set(ours.values())
    assert ours["model.layers.1.mlp.up_proj.weight_packed"] == theirs["model.layers.1.mlp.up_proj.weight"]
    assert ours["lm_head.weight"] == theirs["model.embed_tokens.weight" if tied else "lm_head.weight"]
    assert logits(tmp_path / "out", tokens()).isfinite().all()


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("Qwen3Moe", EXPERTS, "Experts layers"),
        ("DeepseekV3", LATENT | {"q_lora_rank": 48}, "latent attention"),
        ("Olmo2", {"pad_token_id": 0}, "norms after attention or feed-forward"),
        ("Gemma3", {}, "norms after attention or feed-forward"),
        ("Llama", {"cla_share_factor": 3}, "keys and values that several layers share"),
    ],
)
def test_other_architectures_are_refused_by_name(
    kind: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    tiny.save(tmp_path / "plain", kind, **changes)
    with pytest.raises(UnsupportedModel, match=f"{named}.*--weights int4"):
        rotate(tmp_path / "plain", tmp_path / "out", EXACT)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_transformers_refuses_a_rotated_checkpoint_by_name(tmp_path: Path) -> None:
    tiny.save(tmp_path / "plain", "Llama")
    rotate(tmp_path / "plain", tmp_path / "rotated", EXACT)
    with pytest.raises(ValueError, match="model type `ringkv-rotated`"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "rotated")


def test_groups_of_a_converted_gguf_are_not_copied(tmp_path: Path) -> None:
    tiny.save(tmp_path / "plain", "Llama")
    for name in (GROUPS, BYTE_GROUPS):  # integers that are not rotated
        save_file({}, tmp_path / "plain" / name)
    rotate(tmp_path / "plain", tmp_path / "rotated", EXACT)
    found = {path.name for path in (tmp_path / "rotated").iterdir()}
    assert found == {path.name for path in (tmp_path / "plain").iterdir()} - {GROUPS, BYTE_GROUPS}


def test_a_rotated_model_is_not_rotated_again(tmp_path: Path) -> None:
    tiny.save(tmp_path / "plain", "Llama")
    rotate(tmp_path / "plain", tmp_path / "rotated", EXACT)
    with pytest.raises(InvalidRequest, match="is rotated"):
        rotate(tmp_path / "rotated", tmp_path / "again", EXACT)


@pytest.mark.parametrize("at", ["out", "out.partial"])
def test_files_of_others_are_not_overwritten(at: str, tmp_path: Path) -> None:
    tiny.save(tmp_path / "plain", "Llama")
    (tmp_path / at).mkdir()
    (tmp_path / at / "mine").write_text("mine")
    with pytest.raises(InvalidRequest, match=f"{at} (exists and is not empty|is in the way)"):
        rotate(tmp_path / "plain", tmp_path / "out", EXACT)
    assert (tmp_path / at / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("choice", "message"),
    [({"weights": "int3"}, "choose one of bf16, int8, int4"), ({"weights": "int8", "group": "32"}, "choose row")],
)
def test_unknown_choices_are_refused(choice: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        RotationChoice(**choice)
