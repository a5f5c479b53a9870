"""build: an engine on one rank or on several, which the caller cannot tell apart."""

import signal
import threading

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine
from ringkv.base.progress import Progress, silent
from ringkv.kernels.collective import report_end, shared_memory
from ringkv.kernels.network import abort
from ringkv.ranks import placement
from ringkv.ranks.engine import RankedEngine
from ringkv.ranks.group import Group
from ringkv.ranks.packets import PacketParts
from ringkv.ranks.part import build_local, build_part

TIMEOUT = 60.0  # seconds to wait for another rank's result
WAKE = signal.SIGUSR1  # wakes the main thread if a rank ends


def build(config: EngineConfig, tell: Progress = silent) -> Engine:
    """Build an engine; see `engine.build`. With several ranks, start their processes too."""
    if config.rank.count == 1:
        return build_local(config, tell)
    placement.check(config)
    first = placement.placed(config)
    descriptor = shared_memory() if first.exchange == "memory" else None
    group = Group(first, descriptor, TIMEOUT, tell)
    try:
        engine = build_part(first, descriptor, TIMEOUT, tell)
        tell(0, 0, "waiting for the other ranks")
        others = group.wait_until_built()
    except BaseException:
        group.close()
        raise
    _notice_an_end(group, first)
    group.check()
    return RankedEngine(engine, group, PacketParts.of(config), others)


def _notice_an_end(group: Group, config: EngineConfig) -> None:
    """Let this rank raise RankEnded if another ends: while it waits for a result, and while it waits for a message."""
    builder, is_main = threading.get_ident(), threading.current_thread() is threading.main_thread()

    def ended(rank: int) -> None:
        if config.exchange == "memory":
            report_end(rank)
        elif config.device != "cpu":  # gloo reports it by itself, NCCL does not
            abort()
        if is_main:
            signal.pthread_kill(builder, WAKE)

    if is_main:
        signal.signal(WAKE, lambda *_: group.check())
    group.on_end = ended
