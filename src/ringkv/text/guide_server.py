"""The program of guide processes: python -m ringkv.text.guide_server SOCKET

It loads the tokens of one model, then forks a process for each socket that it is sent. So a process starts in
milliseconds and knows the model's tokens, and the program itself never reads a grammar. A forked process answers the
calls of `guide_messages` within limits of processor time and memory. The kernel ends it at a limit, whatever it does,
and an overflow of the stack or an abort of llguidance ends nothing else. All of them end when their sockets are closed.
"""

import os
import resource
import signal
import socket
import sys
from multiprocessing.connection import Connection

from ringkv.base.errors import RingKVError
from ringkv.base.failure import describe
from ringkv.text.guide import STACK, Guides, TokenGuide
from ringkv.text.guide_messages import (
    Call,
    Done,
    Failed,
    Make,
    Mask,
    Next,
    Reply,
    Try,
    decode_call,
    decode_vocabulary,
    encode,
)

MEMORY = 128 << 20  # bytes that one grammar may take, besides the stack
READY = b"ready"
OPTIONAL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # meant for the server, which may have work to finish


def main(descriptor: int) -> None:
    for number in OPTIONAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what was forked
    control = socket.socket(fileno=descriptor)
    loaded = Connection(os.dup(descriptor))
    vocabulary = decode_vocabulary(loaded.recv_bytes())
    loaded.close()
    guides = Guides(lambda: vocabulary, vocabulary.size)
    guides.load()
    while True:
        sent, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not sent:
            return
        if os.fork() == 0:
            control.close()
            _child(Connection(descriptors[0]), guides)
        os.close(descriptors[0])


def _child(connection: Connection, guides: Guides) -> None:
    """Answer calls until the connection is closed, and exit."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic's message may quote a grammar
        _limit_memory()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        connection.send_bytes(READY)
        _serve(connection, guides)
    except (EOFError, OSError):
        status = 0
    finally:
        os._exit(status)


def _serve(connection: Connection, guides: Guides) -> None:
    made: dict[int, TokenGuide] = {}
    while True:
        call = decode_call(connection.recv_bytes())
        signal.setitimer(signal.ITIMER_PROF, call.seconds)
        try:
            reply = _reply(call, guides, made)
        except RingKVError as error:
            reply = Failed(describe(error))
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(encode(reply))


def _reply(call: Call, guides: Guides, made: dict[int, TokenGuide]) -> Reply:
    match call:
        case Make():
            made[call.guide] = guides(call.grammar)
        case Try():
            guides.try_out(made[call.guide])
        case Next():
            for number in call.dropped:
                made.pop(number, None)
            guide = made[call.guide]
            for token in call.taken:
                guide.take(token)
            return Mask(guide.allowed(call.left), guide.is_cut)
    return Done()


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return  # only Linux counts this memory
    most = now + STACK + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    main(int(sys.argv[1]))
