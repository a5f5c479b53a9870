import os
import random
import struct
from multiprocessing import Pipe
from threading import Thread

import pytest

from bench.fuzz.channel import framed
from ringkv.base.messages import Cancel, Shutdown
from ringkv.worker.channel import LARGEST_MESSAGE, Channel, ChannelClosed, InvalidMessage
from ringkv.worker.codec import encode


def ends() -> tuple[Channel, Channel]:
    ours, theirs = Pipe()
    return Channel(ours), Channel(theirs)


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
    with pytest.raises(ChannelClosed):
        theirs.receive()


def test_sending_to_a_closed_end_raises_channel_closed():
    ours, theirs = ends()
    theirs.close()
    with pytest.raises(ChannelClosed):
        ours.send(Shutdown())
    with pytest.raises(ChannelClosed):
        theirs.is_waiting()


def after(*frames: bytes) -> Channel:
    """Return a channel whose other end writes these bytes and is closed."""
    ours, theirs = Pipe()

    def write() -> None:
        try:
            for frame in frames:
                os.write(theirs.fileno(), frame)
        except OSError:
            pass  # the reader has closed its end
        theirs.close()

    Thread(target=write, daemon=True).start()
    return Channel(ours)


@pytest.mark.parametrize(
    "header",
    [struct.pack("!i", LARGEST_MESSAGE + 1), struct.pack("!iQ", -1, 2**63), struct.pack("!i", 2**31 - 1)],
    ids=["one byte too long", "2**63 bytes", "2**31 - 1 bytes"],
)
def test_a_message_that_is_too_long_is_refused_before_it_is_read(header):
    channel = after(header, b"x")
    with pytest.raises(InvalidMessage, match=f"{LARGEST_MESSAGE:,} bytes"):
        channel.receive()
    with pytest.raises(ChannelClosed):
        channel.receive()


@pytest.mark.parametrize("length", [-2, 0, 1])
def test_a_length_that_is_no_messages_is_refused(length):
    with pytest.raises(InvalidMessage):
        after(struct.pack("!i", length), b"\xc1").receive()


@pytest.mark.parametrize("part", [1, 3, 4, 9])
def test_a_truncated_message_counts_as_closed(part):
    data = encode(Cancel("a"))
    with pytest.raises(ChannelClosed):
        after((struct.pack("!i", len(data)) + data)[:part]).receive()


def test_after_a_message_that_cannot_be_decoded_the_next_one_is_read():
    data = encode(Cancel("a"))
    channel = after(struct.pack("!i", 2), b"\xc1\xc1", struct.pack("!i", len(data)), data)
    with pytest.raises(InvalidMessage):
        channel.receive()
    assert channel.receive() == Cancel("a")


def test_whatever_arrives_is_a_message_or_refused():
    chance = random.Random(1)
    outcomes = {"message": 0, "invalid": 0, "closed": 0}
    for _ in range(500):
        channel, outcome = after(*(framed(chance) for _ in range(3))), ""
        while outcome != "closed":
            try:
                channel.receive()
                outcome = "message"
            except InvalidMessage:
                outcome = "invalid"
            except ChannelClosed:
                outcome = "closed"
            outcomes[outcome] += 1
        channel.close()
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
    with pytest.raises(ChannelClosed):
        theirs.wait()
