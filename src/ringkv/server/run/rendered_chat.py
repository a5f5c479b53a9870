"""RenderedChat: a chat request as a prompt of token ids, and the parser for its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.errors import InvalidRequest, Unsupported
from ringkv.server.run.refusals import refuse_template_variables
from ringkv.server.run.schemas import AllowedTools, ChatBody, NamedTool, SentMessage
from ringkv.server.run.serving import Serving
from ringkv.text.answers.reader import Reader
from ringkv.text.answers.spans import END_OF_THINK, THINK, MarkedSpan, thinking
from ringkv.text.answers.tools import CallFormat, Schemas, format_of, with_parsed_arguments, with_tools_described
from ringkv.text.chat_template import ChatTemplate, message_param, plain
from ringkv.text.grammar import after_reasoning

NEWER_SYSTEM = "developer"  # OpenAI's newer name for the system role; templates use the older name
EFFORT, THINKING_SWITCH = "reasoning_effort", "enable_thinking"  # variables of chat templates
ROLES = ("system", NEWER_SYSTEM, "user", "assistant", "tool")
TemplateMessage = Mapping[str, Any]


@dataclass(frozen=True)
class AllowedCalls:
    """Tools that an answer may call, and the format of a call. required: the answer must be a call."""

    format: CallFormat
    schemas: Schemas
    required: bool


@dataclass(frozen=True)
class RenderedChat:
    """system_tokens: number of leading prompt tokens that hold the system message.

    spans: reasoning and tool calls that the answer may contain. open_span: the span that the prompt has opened.
    may_think: the answer may begin with reasoning, or go on with that of the prompt. marks: the tokens of the marks
    of reasoning, if they are tokens. calls: None if no tool may be called.
    """

    prompt: Sequence[int]
    system_tokens: int
    spans: Sequence[MarkedSpan]
    open_span: MarkedSpan | None
    may_think: bool
    marks: tuple[int | None, int | None]
    calls: AllowedCalls | None

    @classmethod
    def of(cls, serving: Serving, body: ChatBody, longest_prompt: int, answers: bool = True) -> "RenderedChat":
        """Render and tokenise a chat. answers: it will be answered, so calls must be of a format that is read.

        Raises PromptTooLong, before tokenising, for a text that is too long for `longest_prompt` tokens.
        """
        if (template := serving.template) is None:
            raise InvalidRequest(f"{serving.names[0]} has no chat template; use /v1/completions", "messages")
        tools: Sequence[Any] = [] if body.tool_choice == "none" else body.tools or []
        tool_schemas: Sequence[Mapping[str, Any]] = tools
        converted = messages = template_messages(body.messages)
        if not template.mentions("tools"):
            messages, tool_schemas = with_tools_described(messages, tool_schemas), []
        marks = serving.tokenizer.token_id(THINK), serving.tokenizer.token_id(END_OF_THINK)
        marks_reasoning = marks[0] is not None or template.mentions(THINK)
        options: dict[str, Any] = {
            "tools": tool_schemas or None,
            "variables": _variables(body, template, marks_reasoning),
            "parse_special": body.parse_special_tokens is True,
        }
        rendered = template.prompt(messages, serving.tokenizer, **options)
        text = rendered.text
        check_rendered(converted, text)
        serving.tokenizer.check_length(text, longest_prompt, body.prompt_field)
        prompt = serving.tokenizer.encode_prompt(rendered)
        system_tokens = template.system_tokens(messages, serving.tokenizer, **options)
        calls = _allowed_calls(body, tools, template) if answers else None
        may_think = marks_reasoning and not text.rstrip().endswith(END_OF_THINK)
        think = replace(thinking(), ends_alone=may_think)
        spans = [*([think] if marks_reasoning else []), *([calls.format.span(calls.schemas)] if calls else [])]
        open_span = think if may_think and text.rstrip().endswith(THINK) else None
        return cls(prompt, system_tokens, spans, open_span, may_think, marks, calls)

    def constrained(self, grammar: str) -> str:
        """Return the grammar of an answer whose text after any reasoning has this grammar."""
        return after_reasoning(grammar, self.open_span is not None, *self.marks) if self.may_think else grammar

    def reader(self) -> Reader:
        return Reader(self.spans, self.open_span)


def _variables(body: ChatBody, template: ChatTemplate, marks_reasoning: bool) -> Mapping[str, Any]:
    """Return the variables of the chat template. Raises InvalidRequest for an effort that the template cannot have."""
    given, effort = body.chat_template_kwargs or {}, body.reasoning_effort
    refuse_template_variables(given)
    if effort == "none" and template.mentions(THINKING_SWITCH):
        return {THINKING_SWITCH: False, **given}
    if effort is not None and template.mentions(EFFORT):
        return {EFFORT: effort, **given}
    if effort in (None, "medium") or (effort == "none" and not marks_reasoning):
        return given
    raise InvalidRequest(f"{EFFORT} is {effort}, which this model's chat template does not take; leave it out", EFFORT)


def _allowed_calls(body: ChatBody, tools: Sequence[Mapping[str, Any]], template: ChatTemplate) -> AllowedCalls | None:
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    names, required = _chosen(body.tool_choice, [*schemas])
    if required and not (names and schemas):
        raise InvalidRequest("tool_choice is required and there are no tools; send some", "tool_choice")
    if not schemas:
        return None
    if unknown := next((name for name in names if name not in schemas), None):
        raise InvalidRequest(f"tool_choice names {unknown!r}, which is not one of the tools", "tool_choice")
    if (form := format_of(template.source)) is None:
        raise Unsupported("this model writes calls in a format that ringkv does not read; leave tools out", "tools")
    return AllowedCalls(form, {name: schemas[name] for name in names}, required)


def _chosen(choice: str | NamedTool | AllowedTools | None, names: list[str]) -> tuple[list[str], bool]:
    """Return the names of the tools that may be called, and whether one must be."""
    match choice:
        case NamedTool():
            return [choice.function.name], True
        case AllowedTools():
            options = choice.allowed_tools
            return [tool.function.name for tool in options.tools], options.mode == "required"
    return names, choice == "required"


def template_messages(messages: Sequence[SentMessage]) -> list[TemplateMessage]:
    """Convert content to strings and tool call arguments to objects, and drop nulls.

    Raises InvalidRequest for malformed tool calls and for content that is not text.
    """
    return [_template_message(message, number) for number, message in enumerate(messages)]


def check_rendered(messages: Sequence[TemplateMessage], prompt: str) -> None:
    """Raise InvalidRequest if the prompt lacks a message with an unknown role; templates drop those silently."""
    for number, message in enumerate(messages):
        if message["role"] not in ROLES and message["content"].strip() not in prompt:
            raise InvalidRequest(
                f"message {number} has role {message['role']!r}, which this model's chat template drops; "
                f"use one of {', '.join(ROLES)}",
                message_param(number, "role"),
            )


def _template_message(message: SentMessage, number: int) -> TemplateMessage:
    converted = plain({name: value for name, value in message.items() if value is not None}, number)
    converted["role"] = "system" if converted["role"] == NEWER_SYSTEM else converted["role"]
    converted["content"] = converted.get("content") or ""
    calls = converted.pop("tool_calls", None)
    if not calls:
        return converted
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        shape = "[{'id': ..., 'type': 'function', 'function': {'name': ..., 'arguments': ...}}]"
        raise InvalidRequest(
            f"tool_calls of message {number} are malformed; the format is {shape}", message_param(number, "tool_calls")
        )
    return with_parsed_arguments({**converted, "tool_calls": calls})


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
