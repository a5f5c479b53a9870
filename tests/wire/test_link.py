import os
import random
import struct
from socket import socketpair
from threading import Thread

import pytest

from bench.fuzz.channel import CODEC, framed
from ringkv.base.messages import Cancel, Shutdown
from ringkv.wire.link import LARGEST, Codec, InvalidMessage, Link, LinkClosed
from ringkv.wire.outbox import QueuedLink


def ends() -> tuple[Link, Link]:
    ours, theirs = socketpair()
    return Link(ours, CODEC), Link(theirs, CODEC)


def test_messages_arrive_in_order_and_is_waiting_reports_them():
    ours, theirs = ends()
    assert not theirs.is_waiting()
    ours.send(Cancel("a"))
    ours.send(Shutdown())
    assert theirs.is_waiting()
    assert [theirs.receive(), theirs.receive()] == [Cancel("a"), Shutdown()]
    assert not theirs.is_waiting()


def test_messages_sent_before_closing_still_arrive():
    ours, theirs = ends()
    ours.send(Cancel("a"))
    ours.close()
    assert theirs.receive() == Cancel("a")
    assert theirs.is_waiting()
    with pytest.raises(LinkClosed):
        theirs.receive()


def test_sending_to_a_closed_end_raises_link_closed():
    ours, theirs = ends()
    theirs.close()
    with pytest.raises(LinkClosed):
        ours.send(Shutdown())
    with pytest.raises(LinkClosed):
        theirs.is_waiting()


def after(*frames: bytes) -> Link:
    """Return a link whose other end writes these bytes and is closed."""
    ours, theirs = socketpair()

    def write() -> None:
        try:
            for frame in frames:
                theirs.sendall(frame)
        except OSError:
            pass  # the reader has closed its end
        theirs.close()

    Thread(target=write, daemon=True).start()
    return Link(ours, CODEC)


@pytest.mark.parametrize(
    "header",
    [struct.pack("!Q", LARGEST + 1), struct.pack("!Q", 2**63), struct.pack("!Q", 2**64 - 1)],
    ids=["one byte too long", "2**63 bytes", "2**64 - 1 bytes"],
)
def test_a_message_that_is_too_long_is_refused_before_it_is_read(header):
    link = after(header, b"x" * 99)
    with pytest.raises(InvalidMessage, match=f"{LARGEST:,} are allowed"):
        link.receive()
    with pytest.raises(LinkClosed):
        link.receive()


def test_a_message_that_is_too_long_is_not_sent():
    ours, theirs = socketpair()
    for link in (Link(ours, CODEC, 20), QueuedLink(theirs, CODEC, 20)):
        with pytest.raises(InvalidMessage, match="20 are allowed"):
            link.send(Cancel("a" * 20))
        link.close()


def test_raw_bytes_follow_a_message():
    ours, theirs = ends()
    ours.send(Cancel("a"), b"12", memoryview(b"345"))
    ours.send(Shutdown())
    assert theirs.receive() == Cancel("a")
    theirs.receive_into(memoryview(raw := bytearray(5)))
    assert (raw, theirs.receive()) == (b"12345", Shutdown())


def test_a_queued_link_sends_what_waits_before_it_is_closed():
    ours, theirs = socketpair()
    link, received = QueuedLink(ours, CODEC), Link(theirs, CODEC)
    for n in range(100):
        link.send(Cancel(f"{n}"), bytes(n))
    closing = Thread(target=link.close, daemon=True)
    closing.start()
    for n in range(100):
        assert received.receive() == Cancel(f"{n}")
        received.receive_into(memoryview(bytearray(n)))
    with pytest.raises(LinkClosed):
        received.receive()
    closing.join(10)
    assert not closing.is_alive()


def test_a_link_refuses_messages_of_classes_that_it_does_not_take():
    ours, theirs = socketpair()
    Link(ours, CODEC).send(Cancel("a"))
    with pytest.raises(InvalidMessage, match="unknown message 'Cancel'"):
        Link(theirs, Codec(Shutdown)).receive()


@pytest.mark.parametrize("length", [2**64 - 2, 0, 1])
def test_a_length_that_is_no_messages_is_refused(length):
    with pytest.raises(InvalidMessage):
        after(struct.pack("!Q", length), b"\xc1").receive()


@pytest.mark.parametrize("part", [1, 7, 8, 13])
def test_a_truncated_message_counts_as_closed(part):
    data = CODEC.encode(Cancel("a"))
    with pytest.raises(LinkClosed):
        after((struct.pack("!Q", len(data)) + data)[:part]).receive()


def test_after_a_message_that_cannot_be_decoded_the_next_one_is_read():
    data = CODEC.encode(Cancel("a"))
    link = after(struct.pack("!Q", 2), b"\xc1\xc1", struct.pack("!Q", len(data)), data)
    with pytest.raises(InvalidMessage):
        link.receive()
    assert link.receive() == Cancel("a")


def test_whatever_arrives_is_a_message_or_refused():
    chance = random.Random(1)
    outcomes = {"message": 0, "invalid": 0, "closed": 0}
    for _ in range(500):
        link, outcome = after(*(framed(chance) for _ in range(3))), ""
        while outcome != "closed":
            try:
                link.receive()
                outcome = "message"
            except InvalidMessage:
                outcome = "invalid"
            except LinkClosed:
                outcome = "closed"
            outcomes[outcome] += 1
        link.close()
    assert outcomes["closed"] == 500
    assert outcomes["invalid"] > 300
    assert outcomes["message"] > 10


def test_a_wait_ends_with_a_message_another_descriptor_or_the_time():
    ours, theirs = ends()
    theirs.wait(seconds=0.01)
    assert not theirs.is_waiting()
    other, signal = os.pipe()
    os.write(signal, b"x")
    theirs.wait([other])
    ours.send(Shutdown())
    theirs.wait()
    assert theirs.is_waiting()
    os.close(other)
    os.close(signal)
    theirs.close()
    with pytest.raises(LinkClosed):
        theirs.wait()
