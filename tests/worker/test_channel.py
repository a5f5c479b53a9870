from multiprocessing import Pipe

import pytest

from ringkv.base.messages import Cancel, Shutdown
from ringkv.worker.channel import Channel, ChannelClosed


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
