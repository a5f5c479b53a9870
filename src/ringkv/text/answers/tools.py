"""CallFormat: the syntax of a model's tool calls, and grammars that force a call."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ringkv.text.answers.spans import MarkedSpan, bare_calls, tagged_calls
from ringkv.text.chat_template import ChatMessage
from ringkv.text.grammar import JSONSchema, lark, schema_in_lark
from ringkv.text.schemas import closed

Schemas = Mapping[str, Mapping[str, Any]]  # tool name -> JSON schema of its arguments


@dataclass(frozen=True)
class CallFormat:
    """`before` and `after` enclose a call's arguments; NAME stands for the tool's name, as JSON."""

    span: Callable[[Collection[str]], MarkedSpan]
    before: str
    after: str

    def grammar(self, tools: Schemas, document: JSONSchema | None = None) -> str:
        """Return the grammar of one call with valid arguments, or of a document that fits the schema `document`."""
        rules = [self._rule(number, name, schema) for number, (name, schema) in enumerate(tools.items())]
        starts = [f"call{number}" for number in range(len(rules))]
        if document is not None:
            starts.append("document")
            rules.append(f"document: %json {schema_in_lark(document)}")
        return lark("\n".join([f"start: {' | '.join(starts)}", *rules]))

    def _rule(self, number: int, name: str, schema: Mapping[str, Any]) -> str:
        before = json.dumps(self.before.replace("NAME", json.dumps(name)))
        arguments = schema_in_lark(closed({"type": "object", **schema}))
        return (
            f"call{number}: {before} arguments{number} {json.dumps(self.after)}\narguments{number}: %json {arguments}"
        )


HERMES = CallFormat(tagged_calls, '<tool_call>\n{"name": NAME, "arguments": ', "}\n</tool_call>")
LLAMA_3 = CallFormat(bare_calls, '{"name": NAME, "parameters": ', "}")

# Text that identifies a format in a chat template.
FORMATS: Sequence[tuple[str, CallFormat]] = (("<tool_call>", HERMES), ('"parameters"', LLAMA_3))
# The same of formats that are not read: GLM's, Qwen3-Coder's, Mistral's, DeepSeek's, Phi-4's, gpt-oss' and Gemma's.
UNREAD = ("<arg_key>", "<function=", "[TOOL_CALLS]", "tool▁calls", "<|tool_call|>", "<|channel|>", "<|channel>")


def format_of(template: str) -> CallFormat | None:
    """Return the format that a chat template describes; None if it describes a format that is not read.

    A template without tools has Hermes' format, which `with_tools_described` describes.
    """
    if any(mark in template for mark in UNREAD):
        return None
    form = next((form for mark, form in FORMATS if mark in template), None)
    return HERMES if form is None and "tools" not in template else form


def with_parsed_arguments(message: ChatMessage) -> ChatMessage:
    """Return a message whose calls have their arguments as objects, which templates expect."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_parsed(call) for call in calls]} if calls else message


def with_tools_described(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """Return the conversation for a template without tools: the system message describes them, roles are plain."""
    plain = [_in_plain_role(message) for message in messages]
    if not tools:
        return plain
    instructions = INSTRUCTIONS.replace("TOOLS", "\n".join(json.dumps(tool) for tool in tools))
    if plain and plain[0].get("role") == "system":
        return [{**plain[0], "content": f"{plain[0].get('content') or ''}\n\n{instructions}"}, *plain[1:]]
    return [{"role": "system", "content": instructions}, *plain]


INSTRUCTIONS = """You may call tools. Each line between <tools> and </tools> describes one:
<tools>
TOOLS
</tools>
To call a tool, answer with its name and its arguments as a JSON object between <tool_call> and </tool_call>:
<tool_call>
{"name": "a tool", "arguments": {"an argument": "its value"}}
</tool_call>"""


def _in_plain_role(message: ChatMessage) -> ChatMessage:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [json.dumps(_parsed(call)["function"], ensure_ascii=False) for call in message["tool_calls"]]
    text = "\n".join([message.get("content") or "", *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])
    return {"role": message["role"], "content": text.strip()}


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object; arguments that do not parse stay unchanged."""
    function = dict(call.get("function") or {})
    with suppress(ValueError, TypeError, RecursionError):
        function["arguments"] = json.loads(function.get("arguments") or "{}")
    return {**call, "function": {"name": function.get("name"), "arguments": function.get("arguments")}}
