import json
from math import inf

from ringkv.base.events import TokenLogprob
from ringkv.server.api.logprobs import chat_logprobs, completion_logprobs
from ringkv.server.run.generation import TokenOutput
from ringkv.text.tokenizer import Tokenizer


def output(token: int | None, logprob: TokenLogprob | None, offset: int = 0) -> TokenOutput:
    return TokenOutput(token, "", offset, is_first=False, logprob=logprob)


def test_without_requested_logprobs_the_result_is_none(tokenizer: Tokenizer) -> None:
    outputs = [output(97, None), output(None, None)]
    assert completion_logprobs(tokenizer, outputs) is None
    assert chat_logprobs(tokenizer, outputs) is None


def test_minus_infinity_becomes_a_finite_number(tokenizer: Tokenizer) -> None:
    outputs = [output(97, TokenLogprob(-inf, ((98, 0.0), (99, -inf))))]
    for made in (completion_logprobs(tokenizer, outputs), chat_logprobs(tokenizer, outputs)):
        assert "-9999.0" in json.dumps(made, allow_nan=False)


def test_the_sampled_token_is_listed_even_if_it_is_not_among_the_top(tokenizer: Tokenizer) -> None:
    made = completion_logprobs(tokenizer, [output(97, TokenLogprob(-7.0, ((98, -0.1), (99, -2.0))))])
    assert made is not None
    assert made["top_logprobs"] == [{"b": -0.1, "c": -2.0, "a": -7.0}]


def test_tokens_of_one_text_share_the_higher_value(tokenizer: Tokenizer) -> None:
    made = completion_logprobs(tokenizer, [output(0xC3, TokenLogprob(-3.0, ((0xA9, -0.5), (0xC3, -3.0))))])
    assert made is not None
    assert made["top_logprobs"] == [{"\ufffd": -0.5}]


def test_chat_distinguishes_half_code_points_by_their_bytes(tokenizer: Tokenizer) -> None:
    made = chat_logprobs(tokenizer, [output(0xC3, TokenLogprob(-3.0, ((0xA9, -0.5), (0xC3, -3.0))))])
    assert made is not None
    assert made["content"][0]["bytes"] == [0xC3]
    assert [top["bytes"] for top in made["content"][0]["top_logprobs"]] == [[0xA9], [0xC3]]
