from dataclasses import replace

from ringkv.base.messages import Submit
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.wire.link import Codec


def test_a_requests_seed_is_random_and_survives_encoding():
    one, other = (Request("r", (1,), SamplingParams()) for _ in range(2))
    codec = Codec(Submit)
    (received,) = codec.decode(codec.encode(Submit((one,)))).requests
    assert one.seed == received.seed != other.seed
    assert one == other


def test_a_seed_in_the_sampling_parameters_takes_precedence():
    one = Request("r", (1,), SamplingParams())
    assert replace(one, sampling=SamplingParams(seed=-5)).seed == -5
