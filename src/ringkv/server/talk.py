"""Talk: a chat's prompt, and how the answer to it is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.server.schemas import ChatBody, NamedTool, Tool, Turn
from ringkv.server.serving import Serving
from ringkv.text.answers.reader import Reader
from ringkv.text.answers.spans import THINK, Span, thinking
from ringkv.text.answers.tools import Schemas, described, format_of, with_arguments_read
from ringkv.text.chat_template import ChatTemplate

NEWER_SYSTEM = "developer"  # OpenAI's newer name for the system role; templates know the older


@dataclass(frozen=True)
class Talk:
    """system: how many of the prompt's first tokens hold the system message. grammar: of an answer that must be a call.

    spans: what the answer may hold beside text; inside: the one that the prompt has begun.
    """

    prompt: Sequence[int]
    system: int
    spans: Sequence[Span]
    inside: Span | None
    grammar: str

    @classmethod
    def of(cls, serving: Serving, body: ChatBody) -> "Talk":
        if serving.template is None:
            raise InvalidRequest(f"{serving.names[0]} has no chat template; use /v1/completions", "messages")
        template, tools = serving.template, _offered(body)
        words = [tool.model_dump(exclude_none=True) for tool in tools]
        turns: Sequence[Mapping[str, Any]] = [as_template_knows(turn) for turn in body.messages]
        if not template.mentions("tools"):
            turns, words = described(turns, words), []
        told: dict[str, Any] = {"tools": words or None, "variables": body.chat_template_kwargs}
        text = template.render(turns, **told)
        prompt = serving.tokenizer.encode(text, add_special_tokens=False)
        system = template.system_tokens(turns, serving.tokenizer, **told)
        format_ = format_of(template.source)
        schemas = _schemas(tools)
        calls = [format_.span(schemas)] if schemas else []
        think = thinking() if _thinks(serving, template) else None
        inside = think if think and text.rstrip().endswith(THINK) else None
        must = _must_call(body, schemas)
        grammar = format_.grammar(must) if must else ""
        return cls(prompt, system, [*([think] if think else []), *calls], None if grammar else inside, grammar)

    def reader(self) -> Reader:
        return Reader(self.spans, self.inside)


def as_template_knows(turn: Turn) -> Mapping[str, Any]:
    role = turn.get("role")
    known = turn | {"role": "system" if role == NEWER_SYSTEM else role, "content": turn.get("content") or ""}
    return with_arguments_read(known)


def _offered(body: ChatBody) -> list[Tool]:
    return [] if body.tool_choice == "none" else body.tools or []


def _schemas(tools: Sequence[Tool]) -> Schemas:
    return {tool.function.name: tool.function.parameters or {} for tool in tools}


def _must_call(body: ChatBody, schemas: Schemas) -> Schemas:
    """Of which tools one has to be called; none where the model may choose to."""
    if body.tool_choice == "required":
        if not schemas:
            raise InvalidRequest("tool_choice is required and there are no tools; send some", "tool_choice")
        return schemas
    if not isinstance(body.tool_choice, NamedTool):
        return {}
    name = body.tool_choice.function.name
    if name not in schemas:
        raise InvalidRequest(f"tool_choice names {name!r}, which is none of the tools", "tool_choice")
    return {name: schemas[name]}


def _thinks(serving: Serving, template: ChatTemplate) -> bool:
    """Whether the model marks what it thinks."""
    return serving.tokenizer.token_id(THINK) is not None or template.mentions(THINK)
