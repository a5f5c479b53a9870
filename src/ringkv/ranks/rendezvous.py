"""Rendezvous: how ranks of several machines connect to the first one, and check that they run the same model.

The first machine listens on loopback unless another address is given. A rank that connects must prove that it has the
secret in RINGKV_RANKS_KEY. Nothing is encrypted, and torch's own port asks for no secret: keep both ports inside a
private network.
"""

import hashlib
import os
import time
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.ranks import ONE_NODE, Nodes
from ringkv.models.config import load_config

KEY = "RINGKV_RANKS_KEY"
CONNECT_TIMEOUT = 300.0  # seconds in which the first machine must begin to listen
SHORTEST_KEY = 16  # bytes


def listener(nodes: Nodes) -> Listener:
    """Return the listener that ranks of other machines connect to."""
    return Listener((nodes.address, nodes.port + 1), authkey=key())


def connected(nodes: Nodes, timeout: float = CONNECT_TIMEOUT) -> Connection:
    """Connect to the first machine. Raises InvalidRequest if nothing listens there within `timeout` seconds."""
    secret, end = key(), time.monotonic() + timeout
    while True:
        try:
            return Client((nodes.address, nodes.port + 1), authkey=secret)
        except OSError as error:
            if time.monotonic() > end:
                raise InvalidRequest(
                    f"nothing listens at {nodes.address}:{nodes.port + 1} ({error.strerror}); start the machine with "
                    "node_rank 0, and open its ports to this one",
                    "master_addr",
                ) from None
            time.sleep(0.2)


def key(param: str = "nnodes") -> bytes:
    """Return the secret of all machines. Raises InvalidRequest naming `param` if there is none, or a short one."""
    secret = os.environ.get(KEY, "").encode()
    if len(secret) < SHORTEST_KEY:
        fault = f"has {len(secret)} bytes" if secret else "is not set"
        raise InvalidRequest(
            f"{KEY} {fault}; set it to the same secret of at least {SHORTEST_KEY} bytes on every machine", param
        )
    return secret


def fingerprint(config: EngineConfig) -> str:
    """Return a hash that is the same on all ranks: of the model's configuration and all options but a machine's own."""
    nothing, kind = Path(), config.device.partition(":")[0]
    shared = replace(
        config,
        model_dir=nothing,
        cache_dir=nothing,
        threads=0,
        rank=config.rank.at(0),
        nodes=ONE_NODE,
        device=kind,
        prefill=(),
    )
    return hashlib.sha256(f"{shared}{load_config(config.model_dir)}".encode()).hexdigest()
