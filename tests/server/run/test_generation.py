"""Stop strings end a choice's text."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

from ringkv.base.errors import EngineDied
from ringkv.base.events import Event, Failed, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.server.run.generation import OutputProcessor, generate
from ringkv.server.run.metrics import Meter, Metrics
from ringkv.text.answers.answer_stream import AnswerStream
from ringkv.text.tokenizer import Tokenizer
from ringkv.worker.supervisor import Supervisor
from tests.server.conftest import Served


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("b", "a"),
        ("cab", "ab"),  # across the boundary between two repetitions of the prompt
        (["zzz", "bc"], "a"),
        ("abcabca", ""),
        (["ca", "b"], "a"),
    ],
)
def test_the_text_ends_before_a_stop_string(served: Served, stop: Any, text: str) -> None:
    choice = served.post("completions", prompt="abc", stop=stop, max_tokens=30).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")


def test_what_may_become_a_stop_string_is_held_back_and_sent_when_it_does_not(served: Served) -> None:
    chunks = served.chunks("completions", prompt="abcd", stop="bcx", max_tokens=6)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "", "", "bcd", "a", "b"]


def test_nothing_of_a_stop_string_is_ever_streamed(served: Served) -> None:
    chunks = served.chunks("completions", prompt="abcdef", stop="cde", max_tokens=30)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b", "", "", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_frees_the_slot_at_once(slow: Served) -> None:
    got = slow.post("completions", prompt="abc", stop="c", max_tokens=500).json()
    assert got["usage"]["completion_tokens"] == 3
    assert got["usage"]["kv"]["kept"] == 3
    assert slow.engine.cancelled == [slow.engine.submitted[0].id]
    slow.wait_until_free()


def test_a_stop_string_of_several_bytes_is_found(served: Served) -> None:
    choice = served.post("completions", prompt="a🌊b", stop="🌊", max_tokens=30).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("a", "stop")


def test_a_stop_string_wins_over_the_length_it_coincides_with(served: Served) -> None:
    choice = served.post("completions", prompt="abc", stop="c", max_tokens=3).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")


def test_one_choice_that_stops_leaves_the_others_alone(served: Served) -> None:
    got = served.post("completions", prompt=["abc", "xyz"], stop="b", max_tokens=5).json()
    assert [choice["text"] for choice in got["choices"]] == ["a", "xyzxy"]


def test_outputs_before_an_error_in_one_batch_are_sent_before_it(tokenizer: Tokenizer) -> None:
    """Events of several steps may arrive together."""

    class Batch:
        async def submit(self, groups: Sequence[Sequence[Request]]) -> AsyncGenerator[Sequence[Event], None]:
            yield [Token("r", 97), Token("r", 98), Failed("r", "EngineDied", "it ended")]

    async def main() -> list[str]:
        request = Request("r", (97,), SamplingParams(max_tokens=9))
        meter = Meter(Metrics().of("m"), 0.0, is_first=True)
        processor = OutputProcessor(request, AnswerStream(tokenizer.detokenizer()), meter)
        stream = generate(cast(Supervisor, Batch()), [[processor]])
        texts = [output.text for _, output in await anext(stream)]
        with pytest.raises(EngineDied, match="it ended"):
            await anext(stream)
        return texts

    assert asyncio.run(main()) == ["a", "b"]
