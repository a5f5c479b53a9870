"""The slice of DeepSeek-R1: what its checkpoint holds, and what its steps are compared with."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bench.slice import Chosen, Peak, SliceFigure, _cost, config_fields, random_tensor, shown
from ringkv.kernels.route import route
from ringkv.models.config import parse_config
from ringkv.plan import floor
from ringkv.weights.checkpoint import open_checkpoint

CONFIG = parse_config(config_fields())


def test_it_has_one_dense_and_one_expert_layer_of_full_width() -> None:
    shapes = CONFIG.tensors
    assert shapes["model.layers.0.mlp.gate_proj.weight"] == (18432, 7168)
    assert shapes["model.layers.1.mlp.experts.255.down_proj.weight"] == (7168, 2048)
    assert shapes["model.layers.1.self_attn.q_b_proj.weight"] == (128 * 192, 1536)
    assert "model.layers.2.input_layernorm.weight" not in shapes


def test_a_matrix_is_finite_and_its_rows_keep_the_size_of_their_input(tmp_path: Path) -> None:
    torch.manual_seed(0)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(random_tensor(name, (256, 384)), tmp_path / "model.safetensors")
    read = torch.empty(256, 384)
    open_checkpoint(tmp_path).read_into(name, read)
    assert read.isfinite().all()
    assert (read @ torch.ones(384)).std() == pytest.approx(1, rel=0.2)


def test_experts_of_a_step_are_counted_once_each() -> None:
    logits = torch.zeros(3, 8)
    logits[:, :2] = 1
    with Chosen() as chosen:
        route(logits, None, 8, 2)
    assert chosen.distinct == 2


def test_the_floor_reads_the_experts_that_were_chosen() -> None:
    each = 3 * 7168 * 2048 * 5 / 8  # four bits and the groups' scales
    few, many = (_cost(CONFIG, 8, distinct, 2304).bytes for distinct in (8, 64))
    assert many - few == 56 * each
    one = _cost(CONFIG, 1, 8, 2304)
    assert one.bytes == pytest.approx(floor.step(CONFIG, 1, 256, 2304, "int4").bytes)


def test_memory_that_is_freed_again_counts() -> None:
    with Peak() as peak:
        block = torch.ones(64 << 20, dtype=torch.uint8)
        torch.ones(1).item()
        assert block.sum()
        del block
    assert peak.bytes >= 60 << 20


def test_the_table_names_memory_steps_and_experts() -> None:
    load = SliceFigure("load", seconds=30.0, weights_bytes=9 * 10**9, peak_bytes=9_100_000_000, entry_bytes=1152)
    text = shown([load, SliceFigure("step", 8, 0.1, 0.5, 60.25)])
    assert "9.00 GB of weights, at most 100 MB more while loading; 1152 bytes a token" in text
    assert "| step of 8 | 100.0 ms | 50% | 60.2 |" in text
