"""Each architecture's GGUF, named by the gguf package: our logits against those of the model it was written from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file

from ringkv.base.errors import BadWeights
from ringkv.base.stack import Stack
from ringkv.engine.build import build
from ringkv.models.config import load_config
from ringkv.weights.checkpoint import Checkpoint
from ringkv.weights.files import SINGLE
from ringkv.weights.gguf.convert import shapes, weight_bytes, write_config, write_groups, write_weights
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.header import read_header
from ringkv.weights.shapes import check_shapes
from tests.engine import kept, tiny
from tests.weights.gguf.architectures import ARCHITECTURES, EXTRA, MODELS, buffers, corrections, factors
from tests.weights.tiny_gguf import tiny_model, write_named


def converted(path: Path, name: str, quant: Type = Type.F32) -> tuple[Path, Any]:
    """Return the directory that a model's GGUF is converted to, and transformers' model."""
    kind, settings, keys = MODELS[name]
    model = tiny_model(kind, **settings)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(4.0 if tensor.ndim > 1 else 1.0)  # so that a mistake in one part shows in the logits
            tensor.copy_(tensor.bfloat16())
        for tensor in corrections(model):
            tensor.uniform_(0.0, 0.4)
        for tensor in factors(model):
            tensor.uniform_(0.5, 1.5).copy_(tensor.bfloat16())
    rope = model.config.rope_parameters
    extra: dict[str, np.ndarray | None] = {  # type: ignore[type-arg]
        f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32)
        for which in ("short", "long")
        if f"{which}_factor" in rope
    }
    extra |= EXTRA.get(name, lambda model: {})(model)
    written = write_named(path / "tiny.gguf", model, ARCHITECTURES.get(name, name), keys, extra, quant)
    file, out = GGUF(written), path / "hf"
    out.mkdir()
    write_config(file, out)
    check_shapes(shapes(file), load_config(out).tensors)
    write_weights(file, out)
    write_groups(file, out)
    assert weight_bytes(file) == sum(tensor.nbytes for tensor in load_file(out / SINGLE).values())
    if quant != Type.MXFP4:
        exact = sum(tensor.nbytes for tensor in corrections(model))
        rounded = [*model.parameters(), *buffers(model, "layer_scalar")]
        assert weight_bytes(file) == 2 * sum(tensor.numel() for tensor in rounded) + exact
    return out, model


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_model_that_the_file_was_written_from(name: str, tmp_path: Path) -> None:
    folder, model = converted(tmp_path, name)
    tokens = torch.randint(3, 95, (80,)).tolist()
    engine = build(tiny.config(folder))
    found = torch.cat(list(engine.prompt_logits(tokens, rows=80)))
    torch.testing.assert_close(found, kept.logits(model, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("quant", [Type.MXFP4, Type.Q8_0])
def test_experts_of_gpt_oss_have_the_values_of_the_file(quant: Type, tmp_path: Path) -> None:
    folder, model = converted(tmp_path, "gpt-oss", quant)
    checkpoint = Checkpoint(folder)
    assert ("model.layers.0.mlp.experts.down_proj_blocks" in checkpoint.shapes()) == (quant == Type.MXFP4)
    for name, tensor in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            want = dequantize(quantize(tensor.swapaxes(1, 2).numpy(), quant), quant)
            for at in range(4):
                found = torch.empty(tensor.shape[2], tensor.shape[1])
                checkpoint.read_into(name, found, stack=Stack(4, at, tensor.shape[2]))
                assert torch.equal(found, torch.tensor(want[at]).bfloat16().float()), name


def test_an_exponent_beyond_float32_is_refused_by_tensor(tmp_path: Path) -> None:
    converted(tmp_path, "gpt-oss", Type.MXFP4)
    path = tmp_path / "tiny.gguf"
    start = read_header(path).tensors["blk.1.ffn_up_exps.weight"].start
    data = bytearray(path.read_bytes())
    data[start + 17] = 253
    path.write_bytes(data)
    (tmp_path / "again").mkdir()
    with pytest.raises(BadWeights, match=r"blk\.1\.ffn_up_exps\.weight"):
        write_weights(GGUF(path), tmp_path / "again")


def test_four_bits_of_each_expert_are_those_of_the_stack(tmp_path: Path) -> None:
    folder, _ = converted(tmp_path, "qwen3moe", Type.Q4_1)
    checkpoint, found = Checkpoint(folder), load_file(folder / "model.safetensors")
    experts = [name for name in found if ".experts." in name]
    assert len(experts) == 2 * 4 * 3
    for name in experts:
        groups = checkpoint.groups(name, slice(None))
        assert groups is not None
        q, scale, minimum = groups
        whole = q.unflatten(1, (-1, 32)) * scale[..., None].float() + minimum[..., None].float()
        assert torch.equal(whole.flatten(1).bfloat16(), found[name])
