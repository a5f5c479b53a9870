"""What the model is asked: a document and a question, from files, arguments and standard input."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringkv.base.errors import EmptyPrompt, InvalidRequest

if TYPE_CHECKING:
    from ringkv.base.sampling import SamplingParams
    from ringkv.llm.answers import OnPrefill
    from ringkv.llm.llm import LLM
    from ringkv.llm.result import Pieces

STDIN = "-"


def read_prompt(question: str | None, text: str | None, file: str | None) -> str:
    """The document, then the question; `-` for text or file is standard input.

    Raises EmptyPrompt when there is nothing to ask, InvalidRequest when a file is not text.
    """
    if text is not None and file is not None:
        raise InvalidRequest("--prompt and --prompt-file both give the document; leave one out", "prompt")
    document = read_file(STDIN) if text == STDIN else read_file(file) if file is not None else text
    parts = [part for part in (document, question) if part is not None and part.strip()]
    if not parts:
        raise EmptyPrompt("there is nothing to ask; give a question, --prompt TEXT or --prompt-file FILE")
    return "\n\n".join(parts)


def ask(
    llm: "LLM", prompt: str, system: str | None, raw: bool, params: "SamplingParams", tell: "OnPrefill"
) -> "Pieces":
    """Through the model's chat template, if it has one and `raw` does not ask for a plain completion."""
    if not raw and _chats(llm):
        messages = [*system_message(system), {"role": "user", "content": prompt}]
        return llm.stream_chat(messages, params, on_prefill=tell)
    if system is not None:
        raise InvalidRequest("--system needs a chat template, and a plain completion has none; leave it out", "system")
    return llm.stream(prompt, params, on_prefill=tell)


def system_message(system: str | None) -> list[dict[str, str]]:
    return [] if system is None else [{"role": "system", "content": system}]


def _chats(llm: "LLM") -> bool:
    from ringkv.text.chat_template import ChatTemplate

    try:
        ChatTemplate.from_directory(llm.config.model_dir)
    except InvalidRequest:  # a base model has none
        return False
    return True


def read_file(path: str) -> str:
    """The text of a file; `-` is standard input. Raises InvalidRequest if it cannot be read or is not text."""
    name = "standard input" if path == STDIN else path
    try:
        held = sys.stdin.buffer.read() if path == STDIN else Path(path).expanduser().read_bytes()
        return held.decode("utf-8")
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read ({error.strerror}); give a text file", "prompt") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{name} is not UTF-8 text (byte {error.start} is {held[error.start]:#04x}); convert it first", "prompt"
        ) from None
