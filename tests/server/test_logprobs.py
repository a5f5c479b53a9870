import json
from math import inf

from ringkv.base.events import TokenLogprob
from ringkv.server.generation import Piece
from ringkv.server.logprobs import chat_logprobs, completion_logprobs
from ringkv.text.tokenizer import Tokenizer


def piece(token: int | None, logprob: TokenLogprob | None, offset: int = 0) -> Piece:
    return Piece(token, "", offset, is_first=False, logprob=logprob)


def test_none_asked_for_is_none(tokenizer: Tokenizer) -> None:
    pieces = [piece(97, None), piece(None, None)]
    assert completion_logprobs(tokenizer, pieces) is None
    assert chat_logprobs(tokenizer, pieces) is None


def test_minus_infinity_is_a_number_json_has(tokenizer: Tokenizer) -> None:
    pieces = [piece(97, TokenLogprob(-inf, ((98, 0.0), (99, -inf))))]
    for made in (completion_logprobs(tokenizer, pieces), chat_logprobs(tokenizer, pieces)):
        assert "-9999.0" in json.dumps(made, allow_nan=False)


def test_the_drawn_token_is_among_the_top_even_when_it_is_not_likely(tokenizer: Tokenizer) -> None:
    made = completion_logprobs(tokenizer, [piece(97, TokenLogprob(-7.0, ((98, -0.1), (99, -2.0))))])
    assert made is not None
    assert made["top_logprobs"] == [{"b": -0.1, "c": -2.0, "a": -7.0}]


def test_tokens_of_one_text_share_the_likelier_value(tokenizer: Tokenizer) -> None:
    made = completion_logprobs(tokenizer, [piece(0xC3, TokenLogprob(-3.0, ((0xA9, -0.5), (0xC3, -3.0))))])
    assert made is not None
    assert made["top_logprobs"] == [{"\ufffd": -0.5}]


def test_chat_tells_half_code_points_apart_by_their_bytes(tokenizer: Tokenizer) -> None:
    made = chat_logprobs(tokenizer, [piece(0xC3, TokenLogprob(-3.0, ((0xA9, -0.5), (0xC3, -3.0))))])
    assert made is not None
    assert made["content"][0]["bytes"] == [0xC3]
    assert [top["bytes"] for top in made["content"][0]["top_logprobs"]] == [[0xA9], [0xC3]]
