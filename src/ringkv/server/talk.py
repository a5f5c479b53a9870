"""Talk: a chat's prompt, and how the answer to it is read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.server.schemas import ChatBody, NamedTool, Tool
from ringkv.server.serving import Serving
from ringkv.server.turns import check_shown, known_turns
from ringkv.text.answers.reader import Reader
from ringkv.text.answers.spans import THINK, Span, thinking
from ringkv.text.answers.tools import CallFormat, Schemas, described, format_of
from ringkv.text.chat_template import ChatTemplate


@dataclass(frozen=True)
class Calls:
    """Of which tools an answer may call one, and how it is written. must: it has to."""

    format: CallFormat
    schemas: Schemas
    must: bool


@dataclass(frozen=True)
class Talk:
    """system: how many of the prompt's first tokens hold the system message. calls: None where none may be made.

    spans: what the answer may hold beside text; inside: the one that the prompt has begun.
    """

    prompt: Sequence[int]
    system: int
    spans: Sequence[Span]
    inside: Span | None
    calls: Calls | None

    @classmethod
    def of(cls, serving: Serving, body: ChatBody, most: int | None = None) -> "Talk":
        """Raises PromptTooLong for a text that has over `most` tokens whatever they are, before it is tokenised."""
        if serving.template is None:
            raise InvalidRequest(f"{serving.names[0]} has no chat template; use /v1/completions", "messages")
        template, tools = serving.template, _offered(body)
        words = [tool.model_dump(exclude_none=True) for tool in tools]
        known = turns = known_turns(body.messages)
        if not template.mentions("tools"):
            turns, words = described(turns, words), []
        told: dict[str, Any] = {"tools": words or None, "variables": body.chat_template_kwargs}
        text = template.render(turns, **told)
        check_shown(known, text)
        if most is not None:
            serving.tokenizer.check_length(text, most, body.prompt_field)
        prompt = serving.tokenizer.encode(text, add_special_tokens=False)
        system = template.system_tokens(turns, serving.tokenizer, **told)
        calls = _calls(body, tools, format_of(template.source))
        think = thinking() if _thinks(serving, template) else None
        spans = [*([think] if think else []), *([calls.format.span(calls.schemas)] if calls else [])]
        inside = think if think and text.rstrip().endswith(THINK) else None
        return cls(prompt, system, spans, inside, calls)

    def held_to(self, grammar: str) -> "Talk":
        """The same where the answer must be something: it has no room for a thought."""
        return (
            replace(self, inside=None, spans=[span for span in self.spans if span.stream is None]) if grammar else self
        )

    def reader(self) -> Reader:
        return Reader(self.spans, self.inside)


def _offered(body: ChatBody) -> list[Tool]:
    return [] if body.tool_choice == "none" else body.tools or []


def _calls(body: ChatBody, tools: Sequence[Tool], format_: CallFormat) -> Calls | None:
    schemas = {tool.function.name: tool.function.parameters or {} for tool in tools}
    if body.tool_choice == "required" and not schemas:
        raise InvalidRequest("tool_choice is required and there are no tools; send some", "tool_choice")
    if not isinstance(body.tool_choice, NamedTool):
        return Calls(format_, schemas, must=body.tool_choice == "required") if schemas else None
    name = body.tool_choice.function.name
    if name not in schemas:
        raise InvalidRequest(f"tool_choice names {name!r}, which is none of the tools", "tool_choice")
    return Calls(format_, {name: schemas[name]}, must=True)


def _thinks(serving: Serving, template: ChatTemplate) -> bool:
    """Whether the model marks what it thinks."""
    return serving.tokenizer.token_id(THINK) is not None or template.mentions(THINK)
