import math
import random
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fuzz.channel import CODEC, mutated
from bench.fuzz.channel import MESSAGES as VALID
from ringkv.base.engine import Limits
from ringkv.base.events import Failed, Finished, KVUsage, Scored, Token, TokenLogprob, Usage
from ringkv.base.kv import KVChoice
from ringkv.base.messages import Cancel, EngineMetrics, Events, Fatal, Progress, Ready, Shutdown, Stats, Submit
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import SELECTORS, KeyDiff, SnapKV

decode, encode = CODEC.decode, CODEC.encode
_KINDS = {type(message).__name__ for message in VALID}
SAMPLING = SamplingParams(logit_bias={3: -1.5, 50_000: 2.0}, stop=("\n\n", "λ"), stop_token_ids=(7,), logprobs=2)
REQUEST = Request("r-1", (1, 2, 3), SAMPLING, KVChoice(budget=None, recent=0.5), eos=(0, 2))
LIMITS = Limits(8, 1792, 8192, 512, 1, 8192, 49152, 46080, 46080 * 1792, 10**12)
USAGE = Usage(30, 5, KVUsage("snapstream", 16, 16, 18, 2, 16_000))
LOGPROB = TokenLogprob(-0.25, ((5, -0.25), (6, -math.inf)))

MESSAGES = [
    Submit((REQUEST,)),
    Submit((REQUEST, replace(REQUEST, kv=None, eos=()))),
    *(Submit((replace(REQUEST, kv=KVChoice(select=kind())),)) for kind in SELECTORS.values()),
    Submit((replace(REQUEST, kv=KVChoice(select=SnapKV(window=5), protect=((0, 9), (20, 30)))),)),
    Cancel("r-1"),
    Shutdown(),
    Progress(2, 7, "compiling decode"),
    Ready(LIMITS, KVChoice(budget=1792, select=SnapKV(pooling="avg"))),
    Events(tokens=(Token("r-1", 5, LOGPROB), Token("r-2", 9))),
    Events(finished=(Finished("r-1", "length", USAGE),), failed=(Failed("r-3", "BadToken", "no", "prompt"),)),
    Events(scored=(Scored("r-1", (LOGPROB, LOGPROB)),)),
    Events(),
    Submit((replace(REQUEST, owner="key-1", priority=-7, timeout=2.5),)),
    Stats(1, 2, 3, 4),
    EngineMetrics(queue=EngineMetrics().queue.plus(0.3), service=1.5, not_finite=2),
    Fatal("DoesNotFit", "needs 9 GB"),
    *VALID,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_decoded_as_it_was_encoded(message):
    assert decode(encode(message)) == message


def test_tuples_and_integer_keys_are_decoded_as_such():
    request = decode(encode(Submit((REQUEST,)))).requests[0]
    assert isinstance(request.tokens, tuple)
    assert isinstance(request.sampling.stop, tuple)
    assert set(request.sampling.logit_bias) == {3, 50_000}


@given(st.text(), st.lists(st.integers(0, 2**31 - 1)), st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100)))
def test_any_request_is_decoded_as_it_was_encoded(name, tokens, bias):
    message = Submit((Request(name, tuple(tokens), SamplingParams(logit_bias=bias)),))
    assert decode(encode(message)) == message


def test_a_selector_is_decoded_as_its_class():
    decoded = decode(encode(Ready(LIMITS, KVChoice(select=KeyDiff()))))
    assert type(decoded.default_kv.select) is KeyDiff


@pytest.mark.parametrize("select", [{"name": "x"}, {"window": 8}, "tova", {"name": "snapkv", "window": "8"}])
def test_an_unknown_selector_or_wrong_parameter_types_are_refused(select):
    sent = {"limits": LIMITS, "default_kv": {"policy": "snapstream", "select": select}}
    with pytest.raises(msgspec.DecodeError):
        decode(msgspec.msgpack.encode(("Ready", sent)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(("Launch", {})),
        msgspec.msgpack.encode(("Cancel", {"request_id": 5})),
        encode(Submit((REQUEST,)))[:-3],
    ],
    ids=["empty", "not msgpack", "unknown class", "wrong type", "truncated"],
)
def test_bytes_that_are_not_a_message_are_refused(data):
    with pytest.raises(msgspec.DecodeError):
        decode(data)


@pytest.mark.parametrize("depth", [10, 100_000])
def test_deep_nesting_is_refused(depth):
    with pytest.raises(msgspec.DecodeError):
        decode(b"\x92\xa5Ready" + b"\x91" * depth + b"\xc0")
    choice = {"policy": "snapstream", "select": "NEST"}
    data = msgspec.msgpack.encode(("Ready", {"limits": LIMITS, "default_kv": choice}))
    with pytest.raises(msgspec.DecodeError):
        decode(data.replace(b"\xa4NEST", b"\x91" * depth + b"\xc0"))


def test_a_value_that_its_class_refuses_is_refused():
    data = encode(Submit((replace(REQUEST, kv=KVChoice(recent=0.5)),)))
    with pytest.raises(msgspec.DecodeError, match="recent"):
        decode(data.replace(b"\xcb?\xe0\x00\x00\x00\x00\x00\x00", b"\xcb\xbf\xe0\x00\x00\x00\x00\x00\x00"))


def test_mutated_messages_are_decoded_or_refused():
    chance = random.Random(2)
    for _ in range(3000):
        with suppress(msgspec.DecodeError):
            assert type(decode(mutated(chance))).__name__ in _KINDS
