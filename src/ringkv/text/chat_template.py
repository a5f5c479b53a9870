"""ChatTemplate: messages to the prompt format that a chat model was trained on."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from ringkv.base.errors import BadWeights, InvalidRequest, Unsupported
from ringkv.text.files import read_json
from ringkv.text.special_tokens import special_tokens
from ringkv.text.template_environment import template_environment
from ringkv.text.tokenizer import Tokenizer

ChatMessage = Mapping[str, Any]  # {"role": ..., "content": ...} and any other keys that the template uses
DEFAULT, TOOL_USE = "default", "tool_use"
SYSTEM = "system"
PRIVATE_USE = range(0xF0000, 0x10FFFE)  # private-use characters, which do not occur in normal text


class ChatTemplate:
    """A model's chat templates by name (most models have only "default") and the special tokens they write.

    source: the text of all templates. default: the text of the template for a conversation without tools.
    """

    def __init__(self, sources: Mapping[str, str], special: Mapping[str, str], name: str = "the chat template") -> None:
        self.source = "\n".join(sources.values())
        self.default = sources.get(DEFAULT) or next(iter(sources.values()))
        self._templates = {key: _compile(source, name) for key, source in sources.items()}
        self._special = dict(special)

    @classmethod
    def from_directory(cls, directory: Path | str) -> "ChatTemplate":
        """Read chat_template.jinja, else tokenizer_config.json's chat_template.

        Raises InvalidRequest if there is none (a base model), BadWeights if it does not parse.
        """
        directory = Path(directory)
        sources = _in_files(directory) or _in_config(directory)
        if not sources:
            raise InvalidRequest(
                f"{directory.name} has no chat template, so it is not a chat model; "
                f"use a plain completion, or put a chat_template.jinja into {directory}",
                "messages",
            )
        return cls(sources, special_tokens(directory), f"the chat template in {directory}")

    def mentions(self, word: str) -> bool:
        """Return whether a template contains a word, such as "tools"."""
        return word in self.source

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. `variables` are passed to the template by name, such as enable_thinking.

        A message's content is a string or a list of {"type": "text", "text": ...}, joined by line breaks.
        Raises InvalidRequest if there are no messages, or if the template fails on them.
        """
        if not messages:
            raise InvalidRequest("there are no messages; send at least one", "messages")
        defaults = {**self._special, "documents": None, "add_generation_prompt": add_generation_prompt}
        required = {"messages": [plain(message, n) for n, message in enumerate(messages)], "tools": tools}
        try:
            return self._for(tools).render(defaults | dict(variables or {}) | required)
        except TemplateError as error:
            raise InvalidRequest(f"the chat template rejects these messages: {error}", "messages") from error
        except Exception as error:  # a template is a program and may raise anything, e.g. TypeError
            reason = f"{type(error).__name__}: {error}"
            raise InvalidRequest(f"the chat template fails on these messages ({reason})", "messages") from error

    def encode(self, messages: Sequence[ChatMessage], tokenizer: Tokenizer, **options: Any) -> list[int]:
        """Return the prompt's ids; `options` are those of `render`.

        The template writes all special tokens, so the tokenizer adds none.
        """
        return tokenizer.encode(self.render(messages, **options), add_special_tokens=False)

    def system_tokens(self, messages: Sequence[ChatMessage], tokenizer: Tokenizer, **options: Any) -> int:
        """Return the number of prompt tokens up to the end of the system message; 0 without one."""
        first = plain(messages[0], 0) if messages else {}
        text = (first.get("content") or "").strip()
        if first.get("role") != SYSTEM or not text:
            return 0
        rendered = self.render(messages, **options)
        found = rendered.find(text, self._content_start(rendered, first, messages, options))
        return 0 if found < 0 else len(tokenizer.encode(rendered[: found + len(text)], add_special_tokens=False))

    def _content_start(
        self, rendered: str, first: ChatMessage, messages: Sequence[ChatMessage], options: Mapping[str, Any]
    ) -> int:
        """Return the index in `rendered` at which the first message's content begins.

        The prompt is rendered again with other content; the two first differ there.
        """
        mark = next(char for char in map(chr, PRIVATE_USE) if char not in first["content"])
        other = self.render([{**first, "content": mark}, *messages[1:]], **options)
        pairs = enumerate(zip(rendered, other, strict=False))
        return next((place for place, (one, another) in pairs if one != another), len(rendered))

    def _for(self, tools: Sequence[Mapping[str, Any]] | None) -> Template:
        """Return the tool template if there are tools and it exists, else the default, else the first."""
        name = TOOL_USE if tools and TOOL_USE in self._templates else DEFAULT
        return self._templates.get(name) or next(iter(self._templates.values()))


def _in_files(directory: Path) -> dict[str, str]:
    more = {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    paths = {DEFAULT: directory / "chat_template.jinja"} | more
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()}


def _in_config(directory: Path) -> dict[str, str]:
    """Return the templates of tokenizer_config.json, which has one or a list of {"name", "template"}."""
    template = read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        return {one["name"]: one["template"] for one in template}
    return {DEFAULT: template} if template else {}


@lru_cache(maxsize=16)
def _compile(source: str, name: str) -> Template:
    try:
        return template_environment().from_string(source)
    except TemplateSyntaxError as error:
        raise BadWeights(f"line {error.lineno} of {name} does not parse ({error.message}); correct it") from error


def plain(message: Any, index: int) -> dict[str, Any]:
    """Return the message with string content. Raises InvalidRequest for a malformed message."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"message {index} has no role; each is {{'role': ..., 'content': ...}}", "messages")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"content of message {index} is neither a string nor a list of text parts", "messages")
    return {**message, "content": "\n".join(_text(part, index) for part in content)}


def _text(part: Any, index: int) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise Unsupported(f"message {index} has a content part of type {kind!r}; only 'text' is supported", "messages")
