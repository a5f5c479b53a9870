"""How a model writes calls of tools, and how it is made to."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ringkv.text.answers.spans import Span, bare_calls, tagged_calls
from ringkv.text.grammar import JSONSchema, as_written, lark

Message = Mapping[str, Any]
Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments, by the tool's name


@dataclass(frozen=True)
class CallFormat:
    """`before` and `after` stand round a call's arguments; NAME is the tool's, as JSON."""

    span: Callable[[Collection[str]], Span]
    before: str
    after: str

    def grammar(self, tools: Schemas, document: JSONSchema | None = None) -> str:
        """One call of one of these tools, whose arguments fit their schema; or a document that fits its own."""
        rules = [self._rule(number, name, schema) for number, (name, schema) in enumerate(tools.items())]
        starts = [f"call{number}" for number in range(len(rules))]
        if document is not None:
            starts.append("document")
            rules.append(f"document: %json {as_written(document)}")
        return lark("\n".join([f"start: {' | '.join(starts)}", *rules]))

    def _rule(self, number: int, name: str, schema: Mapping[str, Any]) -> str:
        before = json.dumps(self.before.replace("NAME", json.dumps(name)))
        arguments = as_written({"type": "object", **schema})
        return (
            f"call{number}: {before} arguments{number} {json.dumps(self.after)}\narguments{number}: %json {arguments}"
        )


HERMES = CallFormat(tagged_calls, '<tool_call>\n{"name": NAME, "arguments": ', "}\n</tool_call>")
LLAMA_3 = CallFormat(bare_calls, '{"name": NAME, "parameters": ', "}")

# What the template of a model that writes so says of it.
KNOWN: Sequence[tuple[str, CallFormat]] = (("<tool_call>", HERMES), ('"parameters"', LLAMA_3))


def format_of(template: str) -> CallFormat:
    """The format that a chat template teaches; Hermes' where it teaches none, as `described` does then."""
    return next((form for mark, form in KNOWN if mark in template), HERMES)


def with_arguments_read(message: Message) -> Message:
    """A message whose calls have their arguments as objects, as templates want them."""
    return {**message, "tool_calls": [_read(call) for call in message["tool_calls"]]} if _calls(message) else message


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The same conversation in plain roles, for templates that know no tools: they stand in the system message."""
    known = [_in_plain_words(message) for message in messages]
    if not tools:
        return known
    told = TOLD.replace("TOOLS", "\n".join(json.dumps(tool) for tool in tools))
    if known and known[0].get("role") == "system":
        return [{**known[0], "content": f"{known[0].get('content') or ''}\n\n{told}"}, *known[1:]]
    return [{"role": "system", "content": told}, *known]


TOLD = """You may call tools. Each line between <tools> and </tools> describes one:
<tools>
TOOLS
</tools>
To call a tool, answer with its name and its arguments as a JSON object between <tool_call> and </tool_call>:
<tool_call>
{"name": "a tool", "arguments": {"an argument": "its value"}}
</tool_call>"""


def _in_plain_words(message: Message) -> Message:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"}
    if not _calls(message):
        return message
    calls = [json.dumps(_read(call)["function"], ensure_ascii=False) for call in message["tool_calls"]]
    text = "\n".join([message.get("content") or "", *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])
    return {"role": message["role"], "content": text.strip()}


def _calls(message: Message) -> bool:
    return bool(message.get("tool_calls"))


def _read(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose arguments are an object; what is none stays as it is."""
    function = dict(call.get("function") or {})
    with suppress(ValueError, TypeError, RecursionError):
        function["arguments"] = json.loads(function.get("arguments") or "{}")
    return {**call, "function": {"name": function.get("name"), "arguments": function.get("arguments")}}
