"""Each rank of a machine has a device of its own; what a machine cannot run is refused with its numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.ranks import Nodes, Rank
from ringkv.ranks import placement, rendezvous
from tests.engine import tiny


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    tiny.save(tmp_path, "Llama")
    return replace(tiny.config(tmp_path), rank=Rank(0, 8))


def test_cpu_ranks_of_one_machine_share_memory_and_others_use_a_network(config: EngineConfig) -> None:
    assert placement.placed(config).exchange == "memory"
    assert placement.placed(replace(config, nodes=Nodes(2))).exchange == "network"
    assert placement.of_rank(config, 3).device == "cpu"


def test_each_rank_of_a_machine_has_the_gpu_of_its_place_there(config: EngineConfig) -> None:
    on_gpus = replace(config, device="cuda", nodes=Nodes(2, index=1))
    assert [placement.of_rank(on_gpus, index).device for index in (4, 5, 7)] == ["cuda:0", "cuda:1", "cuda:3"]
    assert placement.of_rank(on_gpus, 5).rank == Rank(5, 8)


def test_two_engines_with_gpu_ranks_on_one_machine_meet_at_ports_of_their_own(config: EngineConfig) -> None:
    placed = placement.placed(replace(config, device="cuda"))
    assert (placed.device, placed.exchange) == ("cuda:0", "network")
    assert placed.nodes.port != config.nodes.port


def test_ranks_on_other_gpus_have_the_same_fingerprint(config: EngineConfig) -> None:
    on_gpus = replace(config, device="cuda")
    prints = {rendezvous.fingerprint(placement.of_rank(on_gpus, index)) for index in range(3)}
    assert prints == {rendezvous.fingerprint(on_gpus)}
    assert rendezvous.fingerprint(config) not in prints


@pytest.mark.parametrize(
    ("gpus", "device", "nodes", "said"),
    [
        (2, "cuda", 1, "needs 8 GPUs on this machine and torch sees 2; choose 2, or device cpu"),
        (3, "cuda:0", 2, "needs 4 GPUs on this machine and torch sees 3; choose 6, or device cpu"),
        (8, "cuda:1", 1, "takes the first GPUs and device is cuda:1; choose device cuda"),
    ],
)
def test_too_few_gpus_are_refused(
    config: EngineConfig, gpus: int, device: str, nodes: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(InvalidRequest, match=said):
        placement.check(replace(config, device=device, nodes=Nodes(nodes)))


def test_enough_gpus_are_accepted(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    placement.check(replace(config, device="cuda", nodes=Nodes(2)))
