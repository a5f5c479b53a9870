"""part: the engine of one rank, connected to the others."""

from functools import partial

import torch

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine
from ringkv.base.errors import InvalidRequest
from ringkv.base.progress import Progress, silent
from ringkv.engine import build as local
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.collective import connect, connect_memory
from ringkv.kernels.library import is_native
from ringkv.kernels.network import Network
from ringkv.machine.compiler import missing_for_kernels
from ringkv.text.repeat_words import repeat_words


def build_local(config: EngineConfig, tell: Progress) -> LocalEngine:
    """Build the engine of this process; see `engine.build`."""
    return local.build(config, tell, partial(repeat_words, config.model_dir))


def build_part(config: EngineConfig, descriptor: int | None, timeout: float, tell: Progress = silent) -> Engine:
    """Build the engine of one rank, and connect it to the others. descriptor: see `group.started`."""
    if config.exchange == "network":
        connect(Network(config.rank, config.nodes.address, config.nodes.port, timeout, torch.device(config.device)))
        return build_local(config, tell)
    engine = build_local(config, tell)
    if not is_native("all_reduce_memory"):
        raise InvalidRequest(
            f"tensor_parallel {config.rank.count} needs the C++ kernels: {missing_for_kernels() or 'see the log'}",
            "tensor_parallel",
        )
    assert descriptor is not None
    connect_memory(descriptor, config.rank, timeout)
    return engine
