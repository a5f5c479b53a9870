"""Placement: the device of each rank of a machine, and how the ranks exchange results."""

import socket
from dataclasses import replace

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest


def placed(config: EngineConfig) -> EngineConfig:
    """Return the first rank's configuration with its device and its exchange.

    CPU ranks of one machine share memory; all others use a network, over loopback on one machine.
    """
    if config.device == "cpu":
        return replace(config, exchange="memory" if config.nodes.count == 1 else "network")
    nodes = config.nodes
    if nodes.count == 1:
        with socket.create_server(("127.0.0.1", 0)) as server:
            nodes = replace(nodes, port=server.getsockname()[1])
    return of_rank(replace(config, exchange="network", nodes=nodes), config.rank.index)


def of_rank(config: EngineConfig, index: int) -> EngineConfig:
    """Return the configuration of a rank of this machine: each has a GPU of its ranked, if they run on GPUs."""
    ranked = replace(config, rank=config.rank.at(index))
    if config.device == "cpu":
        return ranked
    return replace(ranked, device=f"cuda:{index - config.nodes.local(config.rank.count).start}")


def check(config: EngineConfig) -> None:
    """Raise InvalidRequest if this machine has too few GPUs. Loads torch."""
    if config.device == "cpu":
        return
    import torch

    if config.device not in ("cuda", "cuda:0"):
        raise InvalidRequest(
            f"tensor_parallel takes the first GPUs and device is {config.device}; choose device cuda, and choose GPUs "
            "with CUDA_VISIBLE_DEVICES",
            "device",
        )
    needed, present = len(config.nodes.local(config.rank.count)), torch.cuda.device_count()
    if needed > present:
        raise InvalidRequest(
            f"tensor_parallel {config.rank.count} needs {needed} GPUs on this machine and torch sees {present}; choose "
            f"{present * config.nodes.count or 1}, or device cpu",
            "tensor_parallel",
        )
