"""The internal channel: damaged messages with right and wrong lengths, as the other process may send them."""

import os
from multiprocessing import Pipe
from random import Random
from threading import Thread

from bench.fuzz.messages import framed
from bench.fuzz.target import Target
from ringkv.worker.channel import Channel, ChannelClosed, InvalidMessage

FRAMES = 50


def _make(random: Random) -> list[bytes]:
    return [framed(random) for _ in range(FRAMES)]


def _run(frames: list[bytes]) -> None:
    """Receive until the other end is closed. Neither end may wait for the other."""
    ours, theirs = Pipe()

    def write() -> None:
        try:
            for frame in frames:
                os.write(theirs.fileno(), frame)
        except OSError:
            pass  # the reader has closed its end
        theirs.close()

    Thread(target=write, daemon=True).start()
    channel = Channel(ours)
    while True:
        try:
            channel.receive()
        except InvalidMessage:
            continue
        except ChannelClosed:
            return


CHANNEL = Target("messages between server and engine", _make, _run, lambda: None)
