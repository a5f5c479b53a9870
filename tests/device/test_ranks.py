"""Ranks on the device: each part of a model gives what the whole gives, and NCCL's sums can be part of a graph."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ringkv.base.ranks import ONE_RANK
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels import collective
from ringkv.kernels.network import Network
from tests.device.test_engine import PROMPT
from tests.engine import tiny
from tests.engine.rank_threads import on_ranks
from tests.engine.test_golden import EXPERTS, LATENT

pytestmark = pytest.mark.device

HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 224}
MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", HEADS),
    "qwen3-moe": ("Qwen3Moe", EXPERTS | HEADS),
    "deepseek": ("DeepseekV3", LATENT | HEADS | {"q_lora_rank": 48, "num_key_value_heads": 16}),
}


def answered(engine: LocalEngine) -> tuple[list[int], torch.Tensor]:
    tiny.enter(engine, tiny.request(PROMPT), slot=1)
    return tiny.decode(engine, 20, slot=1)


@pytest.mark.parametrize(("name", "count"), [("llama", 2), ("llama", 4), ("qwen3-moe", 4), ("deepseek", 4)])
def test_ranks_give_the_tokens_and_logits_of_one(name: str, count: int, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    tiny.save(tmp_path, kind, **changes)
    config = tiny.config(tmp_path, device="cuda:0", graphs="off")
    tokens, logits = answered(build(config))
    for found in on_ranks(config, count, answered):
        assert found[0] == tokens
        torch.testing.assert_close(found[1], logits, atol=1e-3, rtol=1e-3)


@pytest.fixture
def nccl(device: torch.device) -> Iterator[None]:
    """Let this process exchange with itself over NCCL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    collective.connect(Network(ONE_RANK, "127.0.0.1", port, 60.0, device))
    yield
    dist.destroy_process_group()


def test_captured_graphs_exchange_over_nccl(nccl: None, tmp_path: Path) -> None:
    kind, changes = MODELS["llama"]
    tiny.save(tmp_path, kind, **changes)
    config = tiny.config(tmp_path, device="cuda:0", graphs="compiled")
    assert answered(build(replace(config, exchange="network")))[0] == answered(build(config))[0]
