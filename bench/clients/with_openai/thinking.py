"""thinking: the openai package with a model whose template opens a reasoning block, which the answer closes."""

from typing import Any

from bench.clients.with_openai.harness import MODEL, check, client, main

# Few-shot examples: the model was not trained to write reasoning between tags.
MESSAGES: Any = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "<think>\nThey ask for the capital of France.\n</think>\n\nIt is Paris."},
    {"role": "user", "content": "What is the capital of Spain?"},
    {"role": "assistant", "content": "<think>\nThey ask for the capital of Spain.\n</think>\n\nIt is Madrid."},
    {"role": "user", "content": "What is the capital of Italy?"},
]
REQUEST: Any = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 64}


@check("a thought, whole: apart from what is answered")
def complete() -> str:
    message = client.chat.completions.create(**REQUEST).choices[0].message
    thought, answer = message.reasoning_content, message.content  # type: ignore[attr-defined]
    assert thought
    assert answer
    assert "think>" not in thought + answer
    return f"reasoning {thought.strip()!r}, answer {answer.strip()!r}"


@check("a thought, streamed: the same in pieces")
def streamed() -> str:
    message = client.chat.completions.create(**REQUEST).choices[0].message
    deltas = [
        chunk.choices[0].delta for chunk in client.chat.completions.create(**REQUEST, stream=True) if chunk.choices
    ]
    thoughts = [text for delta in deltas if (text := getattr(delta, "reasoning_content", None))]
    answers = [delta.content for delta in deltas if delta.content]
    assert "".join(thoughts) == message.reasoning_content  # type: ignore[attr-defined]
    assert "".join(answers) == message.content
    assert len(thoughts) > 1
    return f"{len(thoughts)} chunks of reasoning, {len(answers)} of the answer"


@check("a thought is left out of a document that was asked for")
def document() -> str:
    shape: Any = {"type": "json_object"}
    message = client.chat.completions.create(**REQUEST, response_format=shape).choices[0].message
    assert not getattr(message, "reasoning_content", None)
    assert (message.content or "").startswith("{")
    return repr((message.content or "")[:40])


if __name__ == "__main__":
    main()
