"""Safetensors checkpoints that transformers saved, against the model in memory."""

import json
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.weights.checkpoint import Checkpoint
from ringkv.weights.files import GROUPS, INDEX, SINGLE

TINY = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
Q, K = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "qk")


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(TINY)


@pytest.fixture(scope="module")
def single(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("single")
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def sharded(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sharded")
    model.save_pretrained(directory, max_shard_size="20KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    return directory


@pytest.fixture
def copied(sharded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sharded, tmp_path / "copy")


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_every_tensor_is_the_one_that_was_saved(
    layout: str, model: LlamaForCausalLM, request: pytest.FixtureRequest
) -> None:
    checkpoint = Checkpoint(request.getfixturevalue(layout))
    saved = model.state_dict()
    assert checkpoint.shapes() == {name: tuple(tensor.shape) for name, tensor in saved.items()}
    for name, tensor in saved.items():
        out = torch.full_like(tensor, torch.nan)
        checkpoint.read_into(name, out)
        assert torch.equal(out, tensor)


def test_tensors_fill_slices_of_a_fused_matrix_in_its_own_dtype(single: Path, model: LlamaForCausalLM) -> None:
    checkpoint = Checkpoint(single)
    fused = torch.zeros(48, 32, dtype=torch.bfloat16)
    checkpoint.read_into(Q, fused[:32])
    checkpoint.read_into(K, fused[32:])
    saved = model.state_dict()
    assert torch.equal(fused, torch.cat([saved[Q], saved[K]]).bfloat16())


def test_a_tensor_fills_a_strided_view(single: Path, model: LlamaForCausalLM) -> None:
    transposed = torch.zeros(32, 16)
    Checkpoint(single).read_into(K, transposed.T)
    assert torch.equal(transposed, model.state_dict()[K].T)


def test_opening_reads_no_weights(tmp_path: Path) -> None:
    size = 8 << 30
    header = json.dumps(
        {
            "large": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]},
            "small": {"dtype": "F32", "shape": [2], "data_offsets": [size, size + 8]},
        }
    ).encode()
    with (tmp_path / SINGLE).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size + 8)  # a hole: no disk is used
    before = psutil.Process().memory_info().rss
    small = torch.ones(2)
    Checkpoint(tmp_path).read_into("small", small)
    assert small.tolist() == [0.0, 0.0]
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_a_matching_checkpoint_passes(single: Path) -> None:
    checkpoint = Checkpoint(single)
    checkpoint.check(checkpoint.shapes())


def test_missing_extra_and_misshapen_tensors_are_counted_and_named(single: Path) -> None:
    checkpoint = Checkpoint(single)
    expected = dict(checkpoint.shapes())
    del expected["model.norm.weight"]
    expected["lm_head.weight"] = (65, 32)
    expected |= {f"model.layers.{layer}.absent": (1,) for layer in range(9)}
    with pytest.raises(BadWeights) as refused:
        checkpoint.check(expected)
    text = str(refused.value)
    assert "9 missing: model.layers.0.absent, model.layers.1.absent" in text
    assert "model.layers.8.absent" not in text
    assert "1 not expected: model.norm.weight" in text
    assert "1 misshapen: lm_head.weight [64, 32] instead of [65, 32]" in text


def test_ignorable_tensors_are_given_by_name_or_pattern(single: Path) -> None:
    checkpoint = Checkpoint(single)
    expected = {name: shape for name, shape in checkpoint.shapes().items() if "norm" not in name}
    checkpoint.check(expected, ignorable=["model.norm.weight", "*layernorm.weight"])
    with pytest.raises(BadWeights, match=r"1 not expected.*model\.norm\.weight"):
        checkpoint.check(expected, ignorable=["*layernorm.weight"])


@pytest.mark.parametrize("kept", [0, 5, 8, 200, 0.3, 0.999])
def test_a_truncated_file_is_named_with_a_remedy(kept: float, single: Path, tmp_path: Path) -> None:
    whole = (single / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    with pytest.raises(BadWeights, match=r"model\.safetensors"):
        Checkpoint(tmp_path)


def test_a_corrupt_header_is_named(single: Path, tmp_path: Path) -> None:
    data = bytearray((single / SINGLE).read_bytes())
    data[8:40] = b"\x00" * 32
    (tmp_path / SINGLE).write_bytes(data)
    with pytest.raises(BadWeights, match="truncated or corrupt"):
        Checkpoint(tmp_path)


def test_a_missing_shard_is_named(copied: Path) -> None:
    lost = sorted(copied.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(BadWeights, match=rf"1 of \d+ .*{lost.name}"):
        Checkpoint(copied)


def test_a_tensor_that_its_shard_does_not_contain_is_named(copied: Path) -> None:
    index = json.loads((copied / INDEX).read_text())
    first, *_ = index["weight_map"].values()
    index["weight_map"]["model.phantom"] = first
    (copied / INDEX).write_text(json.dumps(index))
    with pytest.raises(BadWeights, match=r"1 tensors.*model\.phantom"):
        Checkpoint(copied)


def test_a_shard_outside_the_directory_is_refused(copied: Path) -> None:
    shard = next(copied.glob("*.safetensors"))
    shard.rename(copied.parent / "outside.safetensors")
    (copied / INDEX).write_text(json.dumps({"weight_map": {"x": "../outside.safetensors"}}))
    with pytest.raises(BadWeights, match="outside"):
        Checkpoint(copied)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_named(text: str, copied: Path) -> None:
    (copied / INDEX).write_text(text)
    with pytest.raises(BadWeights, match=rf"{INDEX} .*fetch it again"):
        Checkpoint(copied)


def test_an_index_that_is_nested_deeply_is_named(copied: Path) -> None:
    (copied / INDEX).write_text('{"weight_map": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(BadWeights, match=rf"{INDEX} .* 64"):
        Checkpoint(copied)


@pytest.mark.parametrize("shard", ["", ".", "..", "/etc/passwd", "a\0b", "x" * 5000, "\ud800"])
def test_a_shard_that_no_file_can_have_is_named(shard: str, copied: Path) -> None:
    (copied / INDEX).write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(BadWeights, match="1 of 1 shards") as refused:
        Checkpoint(copied)
    assert len(str(refused.value).replace(str(copied), "")) < 150


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def floats(start: int, stop: int, *shape: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": floats(0, 16, 4), "b": floats(8, 16, 2)},
        {"a": floats(0, 1 << 40, 1 << 38)},
        {"a": floats(0, 16, 2**62, 4)},
        {"a": floats(0, 16, 3)},
        {"a": floats(16, 0, 4)},
        {"a": floats(8, 16, 2)},
        {"a": floats(0, 16, 4, dtype="F99")},
        {"a\nb": floats(0, 16, 5)},
        {"a": 7},
    ],
    ids=["overlap", "outside", "overflow", "size", "backwards", "hole", "dtype", "name", "type"],
)
def test_a_header_that_does_not_describe_the_file_is_refused_in_one_line(tensors: Any, tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_bytes(header(**tensors) + bytes(16))
    with pytest.raises(BadWeights, match=r"model\.safetensors .*\d+ bytes") as refused:
        Checkpoint(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_tensor_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"a": floats(0, 8, 2), "b": floats(8, 16, 2)}).replace('"b"', '"a"').encode()
    (tmp_path / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(BadWeights, match="corrupt"):
        Checkpoint(tmp_path)


def test_a_strange_name_is_quoted_and_shortened(tmp_path: Path) -> None:
    save_file({"a\n\x1b[31m" + "x" * 1000: torch.zeros(4)}, tmp_path / SINGLE)
    with pytest.raises(BadWeights, match=r"1 not expected: 'a\\n\\x1b") as refused:
        Checkpoint(tmp_path).check({})
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("m.q", torch.zeros(8, 16, dtype=torch.uint8), r"'U8', \[8, 16\].* for m\.q, \('U8', \[8, 32\]\)"),
        ("m.q", torch.zeros(8, 32, dtype=torch.int8), r"'I8', \[8, 32\].* for m\.q"),
        ("m.scale", torch.zeros(8, dtype=torch.float16), r"'F16', \[8\].* for m\.scale"),
        ("m.least", torch.zeros(8, 2), r"'F32', \[8, 2\].* for m\.least"),
        ("m.least", None, r"nothing for m\.least"),
        ("m.more", torch.zeros(1), r"no part of a matrix: m\.more"),
        ("other.q", torch.zeros(1), r"other, which is not a matrix"),
        ("v.q", torch.zeros(1), r"v, which is not a matrix"),
    ],
)
def test_groups_that_do_not_fit_their_matrix_are_refused(part: str, value: Any, named: str, tmp_path: Path) -> None:
    save_file({"m": torch.zeros(8, 64), "v": torch.zeros(64)}, tmp_path / SINGLE)
    half = torch.zeros(8, 2, dtype=torch.float16)
    parts = {"m.q": torch.zeros(8, 32, dtype=torch.uint8), "m.scale": half, "m.least": half.clone(), part: value}
    save_file({name: tensor for name, tensor in parts.items() if tensor is not None}, tmp_path / GROUPS)
    with pytest.raises(BadWeights, match=rf"int4\.groups has .*{named}"):
        Checkpoint(tmp_path).check({"m": (8, 64), "v": (64,)})


def test_a_groups_scale_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"m": torch.zeros(8, 64)}, tmp_path / SINGLE)
    scale, least = torch.ones(8, 2, dtype=torch.float16), torch.zeros(8, 2, dtype=torch.float16)
    scale[3, 1] = torch.inf
    parts = {"m.q": torch.zeros(8, 32, dtype=torch.uint8), "m.scale": scale, "m.least": least}
    save_file(parts, tmp_path / GROUPS)
    with pytest.raises(BadWeights, match=r"int4\.groups .* m;"):
        Checkpoint(tmp_path).groups("m")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    with pytest.raises(BadWeights, match=r"pytorch_model\.bin.*run code.*safetensors"):
        Checkpoint(tmp_path)


def test_a_directory_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=r"model\.safetensors"):
        Checkpoint(tmp_path)


def test_a_quantised_tensor_is_refused(tmp_path: Path) -> None:
    save_file({"packed": torch.zeros(4, dtype=torch.int8)}, tmp_path / SINGLE)
    with pytest.raises(UnsupportedModel, match="packed is I8"):
        Checkpoint(tmp_path).read_into("packed", torch.zeros(4))


def saved_in_fp8(folder: Path, scales: torch.Tensor) -> tuple[torch.Tensor, Path]:
    stored = torch.randn(300, 200).to(torch.float8_e4m3fn)
    save_file({"w.weight": stored, "w.weight_scale_inv": scales}, folder / SINGLE)
    return stored, folder


@pytest.mark.parametrize(("first", "count"), [(0, 300), (100, 150), (256, 44), (127, 2)])
def test_fp8_is_read_with_the_scale_of_each_block(first: int, count: int, tmp_path: Path) -> None:
    scales = torch.rand(3, 2)
    stored, folder = saved_in_fp8(tmp_path, scales)
    checkpoint, out = Checkpoint(folder), torch.empty(count, 200)
    checkpoint.check({"w.weight": (300, 200)})
    checkpoint.read_into("w.weight", out, first)
    whole = stored.float() * torch.kron(scales, torch.ones(128, 128))[:300, :200]
    torch.testing.assert_close(out, whole[first : first + count])


def test_fp8_with_other_scales_than_one_for_each_block_is_refused(tmp_path: Path) -> None:
    _, folder = saved_in_fp8(tmp_path, torch.rand(3, 3))
    with pytest.raises(BadWeights, match=r"\(3, 2\).* \(3, 3\)"):
        Checkpoint(folder).read_into("w.weight", torch.empty(300, 200))
