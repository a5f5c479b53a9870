from ringkv.base.events import Failed, Finished, KVUsage, Token, Usage
from ringkv.base.messages import Events

USAGE = Usage(3, 1, KVUsage("full", 8, 3, 0, 0, 80))


def test_a_requests_tokens_come_before_its_last_event_in_any_batch():
    batch = [Token("a", 1), Finished("a", "stop", USAGE), Token("b", 2), Failed("c", "RequestFailed", "no")]
    out = list(Events.of(batch))
    assert sorted(map(repr, out)) == sorted(map(repr, batch))
    assert out.index(Token("a", 1)) < out.index(Finished("a", "stop", USAGE))


def test_an_empty_batch_has_no_events():
    assert list(Events.of([])) == []
