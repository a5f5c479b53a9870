"""gpt-oss' MXFP4 against transformers' conversion, tensor by tensor and as a whole model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ringkv.base.errors import BadWeights
from ringkv.base.stack import Stack
from ringkv.engine.build import build
from ringkv.kernels.byte_groups import ByteGroups
from ringkv.kernels.formats import FORMATS, unpack, unpack_gated
from ringkv.weights.checkpoint import Checkpoint
from ringkv.weights.files import SINGLE
from tests.engine import tiny
from tests.engine.test_golden import GPT_OSS

E, ROWS, BLOCKS = 3, 40, 5
NAMES = ("gate_up_proj", "down_proj")


def saved(folder: Path, scales: torch.Tensor, blocks: torch.Tensor | None = None) -> torch.Tensor:
    blocks = torch.randint(256, (E, ROWS, BLOCKS, 16), dtype=torch.uint8) if blocks is None else blocks
    save_file({"w_blocks": blocks, "w_scales": scales}, folder / SINGLE)
    return blocks


@pytest.mark.parametrize("step", [1, 2])
def test_rows_of_an_expert_equal_transformers_conversion(step: int, tmp_path: Path) -> None:
    scales = torch.randint(90, 160, (E, ROWS, BLOCKS), dtype=torch.uint8)
    whole = convert_moe_packed_tensors(saved(tmp_path, scales), scales, dtype=torch.float32)
    checkpoint, out = Checkpoint(tmp_path), torch.empty(7, 32 * BLOCKS)
    checkpoint.check({"w": (E, 32 * BLOCKS, ROWS)})
    checkpoint.read_into("w", out, 4, Stack(E, 1, ROWS, step, offset=step - 1))
    assert torch.equal(out, whole[1].T[step - 1 :: step][4:11])


@pytest.mark.parametrize("step", [1, 2])
def test_groups_of_bytes_have_exactly_the_values_of_transformers_conversion(step: int, tmp_path: Path) -> None:
    scales = torch.randint(104, 149, (E, ROWS, BLOCKS), dtype=torch.uint8)
    whole = convert_moe_packed_tensors(saved(tmp_path, scales), scales, dtype=torch.float32)
    stack, rows, columns = Stack(E, 1, ROWS, step, offset=step - 1), slice(2, 18), slice(32, 128)
    groups = Checkpoint(tmp_path).byte_groups("w", rows, columns, stack)
    assert groups is not None
    assert groups.q.abs().max() == 12
    groups = ByteGroups(*(torch.cat((one, one)) for one in groups[:3]))  # 32 rows are two whole panels
    found = unpack(FORMATS["int8-groups"].pack(groups))
    assert torch.equal(found[:16], whole[1].T[step - 1 :: step][rows, columns])


def test_a_scale_beyond_the_formats_range_is_only_taken_with_zeros(tmp_path: Path) -> None:
    scales = torch.full((E, ROWS, BLOCKS), 120, dtype=torch.uint8)
    scales[0, 3, 2], scales[1, 3, 2] = 0, 103
    blocks = torch.full((E, ROWS, BLOCKS, 16), 0x21, dtype=torch.uint8)
    blocks[0, 3, 2] = 0x80
    saved(tmp_path, scales, blocks)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.byte_groups("w", slice(0, ROWS), slice(None), Stack(E, 0, ROWS)) is not None
    assert checkpoint.byte_groups("w", slice(0, ROWS), slice(None), Stack(E, 1, ROWS)) is None


def test_blocks_without_a_scale_for_each_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, torch.zeros(E, ROWS, BLOCKS - 1, dtype=torch.uint8))
    with pytest.raises(BadWeights, match="w_blocks"):
        Checkpoint(tmp_path).check({"w": (E, 32 * BLOCKS, ROWS)})


def test_blocks_that_are_not_bytes_are_refused(tmp_path: Path) -> None:
    scales = torch.zeros(E, ROWS, BLOCKS, dtype=torch.uint8)
    saved(tmp_path, scales, torch.zeros(E, ROWS, BLOCKS, 16))
    with pytest.raises(BadWeights, match="w_blocks is F32"):
        Checkpoint(tmp_path).read_into("w", torch.empty(ROWS, 32 * BLOCKS), 0, Stack(E, 0, ROWS))


def twins(folder: Path, **changes: int) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Return the settings of a tiny gpt-oss, its tensors in MXFP4, and the dequantised ones."""
    tiny.save(folder, "GptOss", **GPT_OSS | {"num_hidden_layers": 2} | changes)
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / SINGLE)
    packed, twin = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(NAMES)]:
        count, columns, rows = packed.pop(name).shape
        blocks = torch.randint(256, (count, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(119, 123, blocks.shape[:-1], dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        twin[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    return config | {"quantization_config": {"quant_method": "mxfp4"}}, packed, twin


def test_a_quantised_checkpoint_gives_the_logits_of_its_dequantised_twin(tmp_path: Path) -> None:
    config, packed, twin = twins(tmp_path)
    save_file(twin, tmp_path / SINGLE)
    asked = tiny.request(torch.randint(3, 199, (30,)).tolist())
    want = tiny.stage(build(tiny.config(tmp_path)), asked)
    save_file(packed, tmp_path / SINGLE)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(tiny.stage(build(tiny.config(tmp_path)), asked), want)


def test_an_int8_engine_has_exactly_the_experts_of_the_checkpoint(tmp_path: Path) -> None:
    config, packed, twin = twins(tmp_path, hidden_size=64, intermediate_size=64)
    save_file(twin, tmp_path / SINGLE)
    asked = tiny.request(torch.randint(3, 199, (30,)).tolist())
    want = tiny.stage(build(tiny.config(tmp_path, dtype="bfloat16")), asked)
    save_file(packed, tmp_path / SINGLE)
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = build(tiny.config(tmp_path, dtype="bfloat16", weights="int8"))
    layer, whole = engine.batch.weights.layers[1], twin["model.layers.1.mlp.experts.down_proj"]
    found = unpack(layer["experts_down"]).view(len(whole), 64, 64)
    assert torch.equal(found, whole.transpose(1, 2))
    assert layer["experts_down"].nbytes * 8 == whole.numel() * 9
    gates, ups = twin["model.layers.1.mlp.experts.gate_up_proj"].transpose(1, 2).unflatten(1, (-1, 2)).unbind(2)
    each = torch.stack([unpack_gated(one) for one in layer["experts_gate_up"].chunk(len(whole))])
    assert torch.equal(each, torch.cat((gates, ups), dim=1))
    off = tiny.stage(engine, asked) - want
    assert off.norm() / want.norm() < 0.05
