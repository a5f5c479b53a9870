"""Rendezvous: how ranks of several machines connect to the first machine, and check that they run the same model.

The first machine listens on loopback unless another address is given. See `wire.handshake` for the proof of a secret.
Torch's own port asks for none: keep both ports inside a private network.
"""

import hashlib
import socket
import time
from dataclasses import replace
from pathlib import Path

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.ranks import ONE_NODE, Nodes
from ringkv.models.config import load_config
from ringkv.ranks.messages import link_of
from ringkv.wire.handshake import Hello, introduce, key
from ringkv.wire.link import InvalidMessage, Link, LinkClosed

CONNECT_TIMEOUT = 300.0  # seconds in which the first machine must begin to listen
PARAM = "nnodes"  # of errors about the secret


def listener(nodes: Nodes) -> socket.socket:
    """Return the socket that ranks of other machines connect to."""
    family = socket.AF_INET6 if ":" in nodes.address else socket.AF_INET
    return socket.create_server((nodes.address, nodes.port + 1), family=family)


def connected(config: EngineConfig, timeout: float = CONNECT_TIMEOUT) -> Link:
    """Connect to the first rank. Raises InvalidRequest if it does not listen within `timeout` seconds, or refuses."""
    secret, hello = key(PARAM), Hello(fingerprint(config), rank=config.rank.index)
    end = _dialled(config.nodes, timeout)
    try:
        return introduce(end, secret, hello, link_of, "the first machine")
    except (LinkClosed, InvalidMessage) as error:
        raise InvalidRequest("the first machine has ended; see its log", "master_addr") from error


def _dialled(nodes: Nodes, timeout: float) -> socket.socket:
    until = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection((nodes.address, nodes.port + 1), timeout)
        except OSError as error:
            if time.monotonic() > until:
                raise InvalidRequest(
                    f"nothing listens at {nodes.address}:{nodes.port + 1} ({error.strerror}); start the machine with "
                    "node_rank 0, and open its ports to this one",
                    "master_addr",
                ) from None
            time.sleep(0.2)


def fingerprint(config: EngineConfig) -> str:
    """Return a hash that is the same on all ranks: of the model's configuration and all options but a machine's own."""
    nothing, device = Path(), config.device.partition(":")[0]
    shared = replace(
        config,
        model_dir=nothing,
        cache_dir=nothing,
        threads=0,
        rank=config.rank.at(0),
        nodes=ONE_NODE,
        device=device,
        prefill=(),
    )
    return hashlib.sha256(f"{shared}{load_config(config.model_dir)}".encode()).hexdigest()
