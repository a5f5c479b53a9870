"""What encodings cost: which vectors change, and how differences of losses are summarised."""

import math
from statistics import stdev

import pytest
import torch

from bench.kv_rotation import RoundTrip, Score, attention, figure, unrotated
from bench.report.kv_rotation import kv_rotation as report
from ringkv.base.cache_spec import SINKS
from ringkv.kernels.decode_attend_int4 import CLIP, INT4, MAX_INT4
from tests.bench.report.made import measured

HALVED = RoundTrip(lambda vectors: vectors / 2, SINKS, 1)


class Layer:
    def __init__(self, index: int) -> None:
        self.layer_idx = index


def test_figures_are_relative_to_plain_with_the_standard_error_of_paired_tokens() -> None:
    plain = [1.0 + (7 * at % 10) / 5 for at in range(1000)]
    more = [0.01 + (3 * at % 11) / 100 for at in range(1000)]
    own = Score([one + over for one, over in zip(plain, more, strict=True)], [0.25, 0.75])
    found = figure("int4", own, Score(plain, []))
    perplexities = [math.exp(sum(losses) / 1000) for losses in (own.loss, plain)]
    assert found["perplexity"] == pytest.approx(perplexities[0])
    assert found["more"] == pytest.approx(perplexities[0] / perplexities[1] - 1)
    assert found["more_error"] == pytest.approx(stdev(more) / 1000**0.5, rel=1e-3)
    assert found["divergence"] == 0.5


def test_an_unrotated_encoding_rounds_each_element_in_the_clipped_range_of_its_vector() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(5, 64)
    low, high = CLIP * vectors.amin(-1, keepdim=True), CLIP * vectors.amax(-1, keepdim=True)
    step = (high - low) / MAX_INT4
    rounded = low + step * ((vectors.clamp(low, high) - low) / step).round()
    wrong = (unrotated(INT4)(vectors) - rounded).abs() > step / 50  # an element on the border of two levels
    assert wrong.float().mean() < 0.02


def test_values_and_keys_about_their_mean_are_encoded_except_the_first_keys_and_the_layers_at_both_ends() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16)
    mean = k.mean(2, keepdim=True)
    keys = torch.cat((k[:, :, :SINKS], mean + (k[:, :, SINKS:] - mean) / 2), 2)
    attend = attention(HALVED, layers=3)
    for layer, (own_keys, own_values) in enumerate(((k, v), (keys, v / 2), (k, v))):
        scores = (q @ own_keys.mT / 4).masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
        expected = (scores.softmax(-1) @ own_values).transpose(1, 2)
        assert torch.allclose(attend(Layer(layer), q, k, v, None, 0.25)[0], expected, atol=1e-5)


def test_the_table_has_each_encoding_of_the_newest_run() -> None:
    def one(encoding: str, more: float) -> dict[str, object]:
        row = {"model": "smollm2", "tokens": 9, "encoding": encoding, "perplexity": 18.0, "more": more}
        return {**row, "more_error": 0.004, "divergence": 0.02}

    rows = measured("kv_rotation", one("plain", 0.0), one("int4", 0.9), run="1")
    rows += measured("kv_rotation", one("plain", 0.0), one("int4", 0.023), run="2")
    assert report(rows).splitlines()[2:] == ["| SmolLM2-135M | int4 | +2.30% ± 0.40% | 20.00 |"]
