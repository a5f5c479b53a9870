"""The link of a server and its engine: damaged messages with right and wrong lengths, as either may send them."""

import struct
from contextlib import suppress
from random import Random
from socket import socketpair
from threading import Thread
from typing import get_args

from bench.fuzz.target import Target
from ringkv.base.engine import Limits
from ringkv.base.events import Failed, Finished, KVUsage, Token, TokenLogprob, Usage
from ringkv.base.kv import KVChoice, Layout
from ringkv.base.messages import (
    Cancel,
    EngineMessage,
    Events,
    Fatal,
    FetchKept,
    KeptReply,
    KeptTokens,
    Occupancy,
    Progress,
    PromptState,
    Ready,
    Shutdown,
    SlotState,
    Stats,
    Submit,
    Watch,
)
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import SnapKV
from ringkv.wire.link import Codec, InvalidMessage, Link, LinkClosed

CODEC = Codec(*get_args(EngineMessage))
USAGE = Usage(30, 5, KVUsage("snapstream", 16, 16, 18, 2, 16_000))
MESSAGES = [
    Submit((Request("r", (1, 2, 3), SamplingParams(logit_bias={3: -1.5}, stop=("x",)), KVChoice(select=SnapKV())),)),
    Cancel("r"),
    Shutdown(),
    Progress(2, 7, "compiling"),
    Ready(Limits(8, 64, 512, 8, 1, 512, 97, 10, 640, 10**9), KVChoice(budget=64)),
    Events(tokens=(Token("r", 5, TokenLogprob(-0.25, ((5, -0.25),))),), finished=(Finished("r", "length", USAGE),)),
    Events(failed=(Failed("r", "BadToken", "no", "prompt"),)),
    Stats(1, 2, 3, 4),
    Watch(True),
    Occupancy((PromptState("r", 9, 4),), (SlotState(1, "r", "snapstream", 9, 12, 8, 4, 2, 6, 4, 2, 2, 8, 640),)),
    FetchKept(7, "r"),
    KeptReply(7, KeptTokens("key-1", 9, (1, 1), "snapstream", Layout(9, 4, 2, 2, 6, 4, 2, True), b"\xff\x80\x0f\x00")),
    KeptReply(8, None),
    Fatal("DoesNotFit", "needs 9 GB"),
]


def mutated(chance: Random) -> bytes:
    """Return the bytes of a message, often with a few of them changed, cut, repeated, or nested deeply."""
    data = bytearray(CODEC.encode(chance.choice(MESSAGES)))
    for _ in range(chance.randrange(5)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[place : place + 1] = chance.randbytes(1)
            case 1:
                del data[place : place + chance.randrange(20)]
            case 2:
                data[place:place] = chance.randbytes(chance.randrange(20))
            case 3:
                data[place:place] = data[: chance.randrange(len(data) + 1)]
            case 4:
                # The first byte announces a huge length.
                data[place:place] = chance.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb")) + chance.randbytes(4)
            case _:
                data[place:place] = b"\x91" * chance.choice((10, 100_000))
    return bytes(data)


def framed(chance: Random) -> bytes:
    """Return what a pipe carries for such a message, sometimes with a wrong length."""
    data = mutated(chance)
    length = len(data)
    match chance.randrange(4):
        case 0:
            length = chance.randrange(2 ** chance.randrange(65))
        case 1:
            length = max(0, length + chance.randrange(-5, 6))
    return struct.pack("!Q", length) + data


FRAMES = 50


def _run(frames: list[bytes]) -> None:
    """Receive until the other end is closed. Neither end may wait for the other."""
    ours, theirs = socketpair()

    def write() -> None:
        with theirs, suppress(OSError):  # the reader may have closed its end
            for frame in frames:
                theirs.sendall(frame)

    Thread(target=write, daemon=True).start()
    link = Link(ours, CODEC)
    while True:
        try:
            link.receive()
        except InvalidMessage:
            continue
        except LinkClosed:
            return


CHANNEL = Target(
    "messages between server and engine", lambda random: [framed(random) for _ in range(FRAMES)], _run, lambda: None
)
