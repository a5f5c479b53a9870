"""usual: the openai package with a server in its default configuration."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import openai
from pydantic import BaseModel

from bench.clients.with_openai.harness import MODEL, TOOLS, async_client, check, client, main, send_result

HELLO: Any = [{"role": "user", "content": "Say hello to the sea."}]


class River(BaseModel):
    name: str
    length_km: int


@check("models.list, models.retrieve")
def models() -> str:
    names = [model.id for model in client.models.list()]
    assert client.models.retrieve(names[0]).id == names[0]
    return ", ".join(names)


@check("completions, whole and streamed alike")
def completions() -> str:
    body: Any = {"model": MODEL, "prompt": "The sea is", "max_tokens": 24, "temperature": 0}
    text = client.completions.create(**body).choices[0].text
    parts = [chunk.choices[0].text for chunk in client.completions.create(**body, stream=True)]
    assert "".join(parts) == text
    assert len(parts) == 24
    return f"{len(parts)} chunks"


@check("completions: several prompts, n, best_of, seed, logprobs, echo")
def choices() -> str:
    got = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, seed=1, max_tokens=4)
    again = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, seed=1, max_tokens=4)
    assert [choice.text for choice in got.choices] == [choice.text for choice in again.choices]
    best = client.completions.create(model=MODEL, prompt="a", best_of=3, n=1, max_tokens=4, logprobs=2, echo=True)
    scores = best.choices[0].logprobs
    assert scores is not None
    assert best.usage is not None
    assert len(scores.tokens or ()) == len(scores.token_logprobs or ()) == best.usage.prompt_tokens + 4
    return f"{len(got.choices)} choices"


@check("chat, whole and streamed alike, with usage")
def chat() -> str:
    body: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "temperature": 0}
    answer = client.chat.completions.create(**body)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage == answer.usage or chunks[-1].usage.total_tokens == answer.usage.total_tokens
    return repr(text[:40])


@check("chat: logprobs")
def chat_logprobs() -> str:
    got = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2)
    content = got.choices[0].logprobs.content  # type: ignore[union-attr]
    assert [len(token.top_logprobs) for token in content] == [2, 2, 2]
    return f"{len(content)} tokens"


@check("the asynchronous client, 8 streams at once")
def together() -> str:
    async def count_to(number: int) -> str:
        stream = await async_client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Count to {number}."}], max_tokens=16, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_() -> list[str]:
        return list(await asyncio.gather(*(count_to(number) for number in range(8))))

    texts = asyncio.run(all_())
    assert all(texts)
    return f"{len(texts)} answers"


@check("tools: a named and a required one")
def tools() -> str:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for choice in (named, "required"):
        got = client.chat.completions.create(**TOOLS, messages=HELLO, tool_choice=choice)
        (call,) = got.choices[0].message.tool_calls or ()
        assert "city" in json.loads(call.function.arguments)  # type: ignore[union-attr]
        assert got.choices[0].finish_reason == "tool_calls"
    return call.function.arguments  # type: ignore[union-attr]


@check("tools: streamed, and the result sent back")
def streamed_tools() -> str:
    with client.chat.completions.stream(**TOOLS, messages=HELLO, tool_choice="required") as stream:
        message = stream.get_final_completion().choices[0].message
    return send_result(HELLO, message)


@check("structured output: parse() of a pydantic model")
def structured() -> str:
    for _ in range(5):
        with suppress(openai.LengthFinishReasonError):  # a small model may write digits up to max_tokens
            got = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=River, max_tokens=400)
            assert isinstance(got.choices[0].message.parsed, River)
            return repr(got.choices[0].message.parsed)
    raise AssertionError("no answer ended within 400 tokens")


@check("responses, whole and streamed alike")
def responses() -> str:
    body: Any = {"model": MODEL, "input": "Say hello.", "temperature": 0}
    text = client.responses.create(**body).output_text
    with client.responses.stream(**body) as stream:
        assert stream.get_final_response().output_text == text
    return repr(text[:40])


@check("errors are of the class that says what is wrong")
def errors() -> str:
    wrong: list[tuple[type[openai.APIStatusError], dict[str, Any]]] = [
        (openai.NotFoundError, {"model": "gpt-9"}),
        (openai.BadRequestError, {"temperature": -1}),
        (openai.BadRequestError, {"messages": []}),
    ]
    for kind, change in wrong:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": HELLO} | change)
        except kind:
            pass
        else:
            raise AssertionError(f"{change} was served")
    return f"{len(wrong)} of them"


if __name__ == "__main__":
    main()
