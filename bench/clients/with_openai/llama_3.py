"""llama_3: the openai package with a model whose template uses Llama 3's format of tool calls."""

import json
from typing import Any

from bench.clients.with_openai.harness import TOOLS, check, client, main, send_result

PARIS: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
REQUEST: Any = {**TOOLS, "messages": PARIS, "tool_choice": "required", "temperature": 0}


@check("tools in Llama 3's format: a required one")
def complete() -> str:
    choice = client.chat.completions.create(**REQUEST).choices[0]
    (call,) = choice.message.tool_calls or ()
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    assert "city" in json.loads(call.function.arguments)  # type: ignore[union-attr]
    return call.function.arguments  # type: ignore[union-attr]


@check("tools in Llama 3's format: streamed, and the result sent back")
def streamed() -> str:
    with client.chat.completions.stream(**REQUEST) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls or ()
    (same,) = client.chat.completions.create(**REQUEST).choices[0].message.tool_calls or ()
    assert call.function.arguments == same.function.arguments  # type: ignore[union-attr]
    return send_result(PARIS, message)


@check("tools in Llama 3's format: one that the model may call, or not")
def free() -> str:
    choice = client.chat.completions.create(**REQUEST | {"tool_choice": "auto", "max_tokens": 64}).choices[0]
    calls = choice.message.tool_calls or ()
    assert bool(calls) != bool(choice.message.content)
    return calls[0].function.arguments if calls else repr(choice.message.content[:40])


if __name__ == "__main__":
    main()
