"""gpt-oss' MXFP4 against transformers' conversion, tensor by tensor and as a whole model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ringkv.base.errors import BadWeights
from ringkv.base.stack import Stack
from ringkv.engine.build import build
from ringkv.weights.checkpoint import open_checkpoint
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
    checkpoint, out = open_checkpoint(tmp_path), torch.empty(7, 32 * BLOCKS)
    checkpoint.check({"w": (E, 32 * BLOCKS, ROWS)})
    checkpoint.read_into("w", out, 4, Stack(E, 1, ROWS, step, offset=step - 1))
    assert torch.equal(out, whole[1].T[step - 1 :: step][4:11])


def test_blocks_without_a_scale_for_each_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, torch.zeros(E, ROWS, BLOCKS - 1, dtype=torch.uint8))
    with pytest.raises(BadWeights, match="w_blocks"):
        open_checkpoint(tmp_path).check({"w": (E, 32 * BLOCKS, ROWS)})


def test_blocks_that_are_not_bytes_are_refused(tmp_path: Path) -> None:
    scales = torch.zeros(E, ROWS, BLOCKS, dtype=torch.uint8)
    saved(tmp_path, scales, torch.zeros(E, ROWS, BLOCKS, 16))
    with pytest.raises(BadWeights, match="w_blocks is F32"):
        open_checkpoint(tmp_path).read_into("w", torch.empty(ROWS, 32 * BLOCKS), 0, Stack(E, 0, ROWS))


def test_a_quantised_checkpoint_gives_the_logits_of_its_dequantised_twin(tmp_path: Path) -> None:
    tiny.save(tmp_path, "GptOss", **GPT_OSS | {"num_hidden_layers": 2})
    config, tensors = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / SINGLE)
    packed, twin = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(NAMES)]:
        count, columns, rows = packed.pop(name).shape
        blocks = torch.randint(256, (count, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(119, 123, blocks.shape[:-1], dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        twin[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(twin, tmp_path / SINGLE)
    asked = tiny.request(torch.randint(3, 199, (30,)).tolist())
    want = tiny.stage(build(tiny.config(tmp_path)), asked)
    save_file(packed, tmp_path / SINGLE)
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    assert torch.equal(tiny.stage(build(tiny.config(tmp_path)), asked), want)
