"""Node: the ranks of a machine other than the first. Each is a process that connects to the first rank."""

from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import wait

from ringkv.base.config import EngineConfig
from ringkv.base.errors import EngineDied
from ringkv.machine.exit_status import described
from ringkv.ranks import placement, rendezvous
from ringkv.ranks.follower import main_of_another_machine
from ringkv.ranks.group import end
from ringkv.wire.handshake import key


def run(config: EngineConfig, timeout: float) -> None:
    """Run until the first machine ends its engine. Raises EngineDied if a rank ends with an error."""
    placement.check(config)
    key(rendezvous.PARAM)  # refuse its absence before a process starts
    processes = {}
    for index in config.nodes.local(config.rank.count):
        placed = placement.of_rank(replace(config, exchange="network"), index)
        process = get_context("spawn").Process(
            target=main_of_another_machine, args=(placed, timeout), name=f"ringkv-rank-{index}"
        )
        process.start()
        processes[process.sentinel] = index, process
    try:
        index, first = processes[wait(list(processes))[0]]  # type: ignore[index]
        first.join()
        if first.exitcode:
            raise EngineDied(f"rank {index} of {config.rank.count} {described(first.exitcode)}; see its log")
    except KeyboardInterrupt:
        for _, process in processes.values():
            process.kill()
        raise
    finally:
        for _, process in processes.values():
            end(process)
