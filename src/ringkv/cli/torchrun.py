"""torchrun: options of ranks from the environment variables that torchrun sets, so that it can start `ringkv serve`.

ringkv starts the ranks of a machine itself. With `--nproc-per-node 1`, --tensor-parallel says how many ranks all
machines have. With as many processes as ranks, the first process of a machine starts its ranks and the others end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ringkv.base.errors import InvalidRequest
from ringkv.plan.options import Options

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
ADDRESS = "MASTER_ADDR"
GROUP_RANK = "GROUP_RANK"  # index of the machine; other launchers leave it out


@dataclass(frozen=True)
class Torchrun:
    """What torchrun says of this process. local_rank, local_processes: among those of its machine."""

    processes: int
    local_rank: int
    local_processes: int
    node: int
    address: str
    port: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Torchrun | None":
        """Return what the variables say; None unless all of them are set. Raises InvalidRequest if they disagree."""
        if not all(environment.get(name) for name in (*NUMBERS, ADDRESS)):
            return None
        rank, processes, local_rank, local, port = (_number(environment, name) for name in NUMBERS)
        if not local or processes % local or not local_rank < local or not rank < processes:
            raise InvalidRequest(
                f"RANK {rank} of WORLD_SIZE {processes} is not LOCAL_RANK {local_rank} of LOCAL_WORLD_SIZE {local} on "
                "machines with equally many processes; start ringkv with torchrun, or unset these variables",
                "nnodes",
            )
        node = _number(environment, GROUP_RANK) if environment.get(GROUP_RANK) else rank // local
        return cls(processes, local_rank, local, node, environment[ADDRESS], port)

    @property
    def is_first(self) -> bool:
        """Whether this process starts the ranks of its machine."""
        return self.local_rank == 0

    def fill(self, options: Options) -> Options:
        """Return the options with those of ranks that are left open. Raises InvalidRequest if the processes differ."""
        ranks = self.processes if options.tensor_parallel is None else options.tensor_parallel
        if self.local_processes > 1 and ranks != self.processes:
            raise InvalidRequest(
                f"tensor_parallel is {ranks}, and torchrun starts {self.processes} processes; start one for each "
                "machine (--nproc-per-node 1), or leave tensor_parallel out",
                "tensor_parallel",
            )
        return options.filled(
            tensor_parallel=ranks,
            nnodes=self.processes // self.local_processes,
            node_rank=self.node,
            master_addr=self.address,
            master_port=self.port,
        )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"{name} is {text!r} in the environment; set it to a number, or unset it", "nnodes")
    return int(text)
