from dataclasses import replace

from ringkv.base.messages import Submit
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.worker.codec import decode, encode


def test_a_request_keeps_its_seed_in_a_message_and_another_has_another():
    one, other = (Request("r", (1,), SamplingParams()) for _ in range(2))
    (received,) = decode(encode(Submit((one,)))).requests
    assert one.seed == received.seed != other.seed
    assert one == other


def test_the_seed_that_sampling_names_counts():
    one = Request("r", (1,), SamplingParams())
    assert replace(one, sampling=SamplingParams(seed=-5)).seed == -5
