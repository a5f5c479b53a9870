"""follower: the process of a rank other than the first. It builds its part of the model, then runs verbs."""

import logging
import signal
import sys
from contextlib import suppress
from multiprocessing.reduction import recv_handle
from socket import socket

from ringkv.base import log_lines
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine, RankBytes
from ringkv.base.errors import RingKVError
from ringkv.base.failure import Failure, describe, in_short
from ringkv.machine.parent import exit_with_parent
from ringkv.ranks import rendezvous
from ringkv.ranks.messages import ANY_SIZE, Built, Lanes, Stop, link_of
from ringkv.wire.link import Link, LinkClosed

log = logging.getLogger(__name__)


def main(end: socket, config: EngineConfig, timeout: float) -> None:
    """Run until `Stop`, or until the first rank ends."""
    _begin(config.rank.index)
    _follow(link_of(end, ANY_SIZE), config, timeout)


def main_of_another_machine(config: EngineConfig, timeout: float) -> None:
    """Connect to the first rank, then run until `Stop`, or until it ends."""
    _begin(config.rank.index)
    try:
        link = rendezvous.connected(config)
    except RingKVError as error:
        sys.exit(f"ringkv: {error}")
    _follow(link, config, timeout)


def _begin(rank: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this process
    log_lines.inherit(rank)
    exit_with_parent()


def _follow(link: Link, config: EngineConfig, timeout: float) -> None:
    try:
        descriptor = recv_handle(link) if config.exchange == "memory" else None
        engine = _built(link, config, descriptor, timeout)
        if engine is not None:
            _serve(link, engine)
    except (LinkClosed, EOFError):
        pass  # the first rank has ended


def _built(link: Link, config: EngineConfig, descriptor: int | None, timeout: float) -> Engine | None:
    from ringkv.ranks.part import build_part  # loads torch

    try:
        engine = build_part(config, descriptor, timeout)
    except RingKVError as error:
        link.send(Built(describe(error)._replace(message=f"rank {config.rank.index}: {error}")))
        return None
    except Exception as error:
        log.exception("the rank could not start")
        text = f"rank {config.rank.index} could not start ({in_short(error)}); see its log"
        link.send(Built(Failure("EngineDied", text)))
        return None
    limits = engine.limits
    link.send(Built(bytes=RankBytes(limits.held_bytes, limits.slot_bytes)))
    return engine


def _serve(link: Link, engine: Engine) -> None:
    lanes: Lanes = {}
    while not isinstance(message := link.receive(), Stop):
        with suppress(RingKVError):  # the first rank raises the same
            reply = message.run(engine, lanes)
            if reply is not None:
                link.send_bytes(reply)
