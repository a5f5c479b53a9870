import asyncio

import openai

from tests.server.conftest import NAMES, Served
from tests.server.echo import answer


async def complete(client: openai.AsyncOpenAI, number: int) -> str:
    stream = await client.completions.create(
        model=NAMES[0], prompt=prompt(number), max_tokens=10 + number, stream=number % 2 == 0
    )
    if number % 2:
        return stream.choices[0].text
    return "".join([chunk.choices[0].text async for chunk in stream])


def prompt(number: int) -> str:
    return f"[{number}]"


def test_forty_at_once_each_get_their_own_answer(served: Served) -> None:
    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.root}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(complete(client, number) for number in range(40)))

    expected = [bytes(answer(prompt(number).encode(), 10 + number)).decode() for number in range(40)]
    assert asyncio.run(all_at_once()) == expected
    served.wait_until_free()


def test_the_async_client_streams_a_chat(served: Served) -> None:
    async def chat() -> str:
        async with openai.AsyncOpenAI(base_url=f"{served.root}/v1", api_key="none", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            stream = await client.chat.completions.create(model=NAMES[0], messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(chat()) == "user:hi"
