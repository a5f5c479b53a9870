"""prefill: `ringkv serve --role prefill`, an engine that prefills for decode workers."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine
from ringkv.base.errors import EngineDied
from ringkv.base.progress import Progress
from ringkv.base.ranks import RankEnded
from ringkv.handoff.address import Address
from ringkv.handoff.identity import Identity
from ringkv.handoff.listener import Listener
from ringkv.handoff.prefill_worker import PrefillWorker
from ringkv.wire.handshake import key
from ringkv.worker.process import BUILDER, STOPPING, imported


def run(
    config: EngineConfig, address: Address, tell: Progress, ready: Callable[[str], None], builder: str = BUILDER
) -> None:
    """Build an engine and serve decode workers until SIGINT or SIGTERM. Port 0 takes a free port.

    ready: receives a sentence when it listens. Raises InvalidRequest without a secret, RingKVError for a taken port,
    EngineDied if one of its ranks has ended.
    """
    secret, identity = key("listen"), Identity.of(config)
    listener = Listener(address, secret, identity)
    try:
        engine: Engine = imported(builder)(config, tell)
        worker = PrefillWorker(engine, identity.fingerprint)
        with _stopped_by_signals(worker):
            listener.start(worker.deliver)
            ready(f"listening for decode workers at {listener.address}; start one with --prefill {listener.address}")
            worker.run()
    except RankEnded as error:
        raise EngineDied(f"the engine has ended: {error}") from error
    finally:
        listener.close()
    ready("stopped")


@contextmanager
def _stopped_by_signals(worker: PrefillWorker) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: worker.stop()) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
