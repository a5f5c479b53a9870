"""ChatTemplate: messages to the prompt format that a chat model was trained on.

The texts of special tokens inside messages stay text: they are not the tokens that the template writes (`Literals`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from jinja2 import Template, TemplateError, TemplateSyntaxError

from ringkv.base.errors import BadWeights, InvalidRequest, Unsupported
from ringkv.text.files import read_json, read_text
from ringkv.text.literals import PRIVATE_USE, Literals, PromptText
from ringkv.text.render_budget import TemplateTooExpensive, render_budget
from ringkv.text.special_tokens import special_tokens
from ringkv.text.template_environment import template_environment
from ringkv.text.tokenizer import Tokenizer

ChatMessage = Mapping[str, Any]  # {"role": ..., "content": ...} and any other keys that the template uses
DEFAULT, TOOL_USE = "default", "tool_use"
SYSTEM = "system"
LONGEST_SOURCE = 500_000  # characters; published templates have up to 30,000


class ChatTemplate:
    """A model's chat templates by name (most models have only "default") and the special tokens they write.

    source: the text of all templates. default: the text of the template for a conversation without tools.
    """

    def __init__(self, sources: Mapping[str, str], special: Mapping[str, str], name: str = "the chat template") -> None:
        self.source = "\n".join(sources.values())
        self.default = sources.get(DEFAULT) or next(iter(sources.values()))
        self._templates = {key: _compile(source, name) for key, source in sources.items()}
        self._special = dict(special)
        self._of_tokenizer: WeakKeyDictionary[Tokenizer, Literals] = WeakKeyDictionary()

    @classmethod
    def from_directory(cls, directory: Path | str) -> "ChatTemplate":
        """Read chat_template.jinja, else tokenizer_config.json's chat_template.

        Raises InvalidRequest if there is none (a base model), BadWeights if it does not parse.
        """
        directory = Path(directory)
        if template := cls.find(directory):
            return template
        raise InvalidRequest(
            f"{directory.name} has no chat template, so it is not a chat model; "
            f"use a plain completion, or put a chat_template.jinja into {directory}",
            "messages",
        )

    @classmethod
    def find(cls, directory: Path) -> "ChatTemplate | None":
        """Read the same files. Returns None for a base model, which has none of them."""
        sources = _in_files(directory) or _in_config(directory)
        return cls(sources, special_tokens(directory), f"the chat template in {directory}") if sources else None

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
        wanted = (TOOL_USE if tools else DEFAULT, DEFAULT, *self._templates)
        name = next(name for name in wanted if name in self._templates)  # many models have only the default
        defaults = {**self._special, "documents": None}
        required = {
            "messages": [plain(message, n) for n, message in enumerate(messages)],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return _render(self._templates[name], defaults | dict(variables or {}) | required)
        except TemplateTooExpensive as error:
            raise InvalidRequest(f"the chat template was stopped: {error}", "messages") from error
        except TemplateError as error:
            raise InvalidRequest(f"the chat template rejects these messages: {error}", "messages") from error
        except Exception as error:  # a template is a program and may raise anything, e.g. TypeError
            reason = f"{type(error).__name__}: {error}"
            raise InvalidRequest(f"the chat template fails on these messages ({reason})", "messages") from error

    def prompt(
        self,
        messages: Sequence[ChatMessage],
        tokenizer: Tokenizer,
        *,
        parse_special: bool = False,
        **options: Any,
    ) -> PromptText:
        """Return the prompt for `tokenizer.encode_prompt`; the other options are those of `render`.

        parse_special: the texts of special tokens in messages, tools and variables become these tokens.
        """
        given = {**options, "messages": [plain(message, n) for n, message in enumerate(messages)]}
        if tokenizer not in self._of_tokenizer:
            self._of_tokenizer[tokenizer] = Literals(tokenizer.control_texts(self.source))
        literals = Literals(()) if parse_special else self._of_tokenizer[tokenizer]
        try:
            marked, mark = literals.mark(given)
        except RecursionError as error:
            raise InvalidRequest("the messages are nested too deeply; flatten them", "messages") from error
        # Templates compare roles with words, which a mark would change.
        pairs = zip(marked["messages"], given["messages"], strict=True)
        marked["messages"] = [{**message, "role": sent["role"]} for message, sent in pairs]
        return literals.read(self.render(**marked), mark)

    def encode(self, messages: Sequence[ChatMessage], tokenizer: Tokenizer, **options: Any) -> list[int]:
        """Return the prompt's ids; `options` are those of `prompt`.

        The template writes all special tokens, so the tokenizer adds none.
        """
        return tokenizer.encode_prompt(self.prompt(messages, tokenizer, **options))

    def system_tokens(self, messages: Sequence[ChatMessage], tokenizer: Tokenizer, **options: Any) -> int:
        """Return the number of prompt tokens up to the end of the system message; 0 without a system message.

        The prompt is rendered again with other content. The two first differ where the content begins.
        """
        first = plain(messages[0], 0) if messages else {}
        text = (first.get("content") or "").strip()
        if first.get("role") != SYSTEM or not text:
            return 0
        prompt = self.prompt(messages, tokenizer, **options)
        mark = next(char for char in map(chr, PRIVATE_USE) if char not in first["content"])
        other = self.prompt([{**first, "content": mark}, *messages[1:]], tokenizer, **options)
        pairs = enumerate(zip(prompt.text, other.text, strict=False))
        start = prompt.text.find(text, next((place for place, (a, b) in pairs if a != b), len(prompt.text)))
        return 0 if start < 0 else len(tokenizer.encode_prompt(prompt.upto(start + len(text))))


def _render(template: Template, variables: Mapping[str, Any]) -> str:
    with render_budget() as budget:
        pieces = []
        for piece in template.generate(variables):
            budget.charge(len(piece))
            pieces.append(piece)
        return "".join(pieces)


def _in_files(directory: Path) -> dict[str, str]:
    more = {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    paths = {DEFAULT: directory / "chat_template.jinja"} | more
    return {name: read_text(path, LONGEST_SOURCE) for name, path in paths.items() if path.is_file()}


def _in_config(directory: Path) -> dict[str, str]:
    """Return the templates of tokenizer_config.json, which has a text or a list of {"name", "template"}."""
    path = directory / "tokenizer_config.json"
    template = read_json(path).get("chat_template")
    if not template:
        return {}
    named = template if isinstance(template, list) else [{"name": DEFAULT, "template": template}]
    if not all(
        isinstance(item, dict) and {type(item.get("name")), type(item.get("template"))} == {str} for item in named
    ):
        raise BadWeights(
            f"{path} has a chat_template that is neither a text nor a list of names and templates; correct it"
        )
    return {item["name"]: item["template"] for item in named}


@lru_cache(maxsize=16)
def _compile(source: str, name: str) -> Template:
    if len(source) > LONGEST_SOURCE:
        raise BadWeights(f"{name} has {len(source):,} characters; ringkv reads up to {LONGEST_SOURCE:,}")
    try:
        with render_budget():
            return template_environment().from_string(source)
    except TemplateSyntaxError as error:
        raise BadWeights(f"line {error.lineno} of {name} does not parse ({error.message}); correct it") from error
    except Exception as error:  # jinja writes a Python program, which may be nested too deeply
        raise BadWeights(f"{name} does not compile ({type(error).__name__}: {error}); correct it") from error


def message_param(index: int, field: str) -> str:
    """Return the name of a message's field in OpenAI's errors."""
    return f"messages[{index}].{field}"


def plain(message: Any, index: int) -> dict[str, Any]:
    """Return the message with string content. Raises InvalidRequest for a malformed message."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        text = f"message {index} has no role; each is {{'role': ..., 'content': ...}}"
        raise InvalidRequest(text, message_param(index, "role"))
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    if not isinstance(content, Sequence):
        text = f"content of message {index} is neither a string nor a list of text parts"
        raise InvalidRequest(text, message_param(index, "content"))
    texts = [_text(part, index, message_param(index, f"content[{n}]")) for n, part in enumerate(content)]
    return {**message, "content": "\n".join(texts)}


def _text(part: Any, index: int, param: str) -> str:
    part_type = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if part_type != "text":
        raise Unsupported(f"message {index} has a content part of type {part_type!r}; only 'text' is supported", param)
    text = part.get("text")
    if not isinstance(text, str):
        why = f"message {index} has a content part without text; each is {{'type': 'text', 'text': ...}}"
        raise InvalidRequest(why, param)
    return text
