"""GGUF files of tiny models, converted, against the models they were written from."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ringkv.base.errors import UnsupportedModel
from ringkv.weights.gguf.convert import weight_bytes, write_config, write_weights
from ringkv.weights.gguf.file import GGUF
from tests.weights.tiny_gguf import tiny_model, write_tiny

BIAS = {"attention_bias": True}


def converted(path: Path, out: Path) -> dict[str, torch.Tensor]:
    out.mkdir()
    gguf = GGUF(path)
    write_config(gguf, out)
    write_weights(gguf, out)
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True, "head_dim": 32}),
        ("Llama", BIAS),
        ("Qwen2", {}),
        ("Qwen2", {"tie_word_embeddings": True}),
        ("Qwen3", {"head_dim": 32}),
    ],
)
def test_a_converted_model_is_the_model_it_was_made_from(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model(kind, **settings)
    with torch.no_grad():
        for tensor in model.parameters():  # not the rotary buffers, which are computed
            tensor.copy_(tensor.bfloat16())
    converted(write_tiny(tmp_path / "tiny.gguf", model), tmp_path / "hf")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    assert type(back) is type(model)
    assert set(back.state_dict()) == set(model.state_dict())
    tokens = torch.arange(1, 60)[None]
    with torch.no_grad():
        assert torch.equal(back(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("quant", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1])
@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_every_tensor_has_its_own_rows_quantised_and_dequantised(kind: str, quant: Type, tmp_path: Path) -> None:
    model = tiny_model(kind)
    found = converted(write_tiny(tmp_path / "tiny.gguf", model, quant), tmp_path / "hf")
    assert set(found) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        expected = values if values.ndim == 1 else dequantize(quantize(values, quant), quant)
        assert torch.equal(found[name], torch.from_numpy(np.array(expected)).bfloat16()), name


def random_rows(kind: Type, rows: int, width: int) -> npt.NDArray[np.uint8]:
    """Return random bytes that dequantise to finite values, [rows, bytes of a row]."""
    block, size = GGML_QUANT_SIZES[kind]
    count = rows * width // block
    candidates = np.random.default_rng(0).integers(0, 256, (2 * count, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        values = dequantize(candidates, kind).reshape(2 * count, block)
        finite = candidates[(np.abs(values) < 1e30).all(1)]
    assert len(finite) >= count
    return finite[:count].reshape(rows, -1)


def can_dequantise(kind: Type) -> bool:
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("kind", [kind for kind in Type if can_dequantise(kind)], ids=lambda kind: kind.name)
def test_every_type_that_the_package_dequantises_is_read_block_by_block(kind: Type, tmp_path: Path) -> None:
    raw = random_rows(kind, rows=40, width=512)
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    gguf = GGUF(tmp_path / "x.gguf")
    order = np.random.default_rng(1).permutation(40)
    blocks = list(gguf.rows("blk.0.ffn_up.weight", order, elements=1100))  # two rows and a bit
    assert len(blocks) == 20
    assert gguf.shape("blk.0.ffn_up.weight") == (40, 512)
    assert np.array_equal(np.concatenate(blocks), dequantize(raw, kind).reshape(40, 512)[order])


def test_a_type_that_cannot_be_dequantised_is_refused_by_name(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((2, 8), np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="I32"):
        GGUF(tmp_path / "x.gguf")


@pytest.mark.parametrize("quant", [Type.F32, Type.Q4_1])
def test_progress_counts_every_byte_of_the_weights(quant: Type, tmp_path: Path) -> None:
    gguf = GGUF(write_tiny(tmp_path / "tiny.gguf", tiny_model("Llama"), quant))
    reports: list[tuple[int, int, str]] = []
    write_weights(gguf, tmp_path, lambda *report: reports.append(report))
    done = [count for count, _, _ in reports]
    parameters = sum(tensor.numel() for tensor in tiny_model("Llama").parameters())
    assert done == sorted(done)
    assert reports[-1] == (2 * parameters, 2 * parameters, "converting weights")
    assert weight_bytes(gguf) == 2 * parameters


def test_a_tensor_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("blk.0.ssm_in.weight", np.zeros((2, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ssm_in\.weight"):
        write_weights(GGUF(tmp_path / "x.gguf"), tmp_path)
