"""Prompts from arguments, files and standard input: a document and a question."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringkv.base.errors import EmptyPrompt, InvalidRequest

if TYPE_CHECKING:
    from ringkv.base.kv import KVChoice
    from ringkv.base.sampling import SamplingParams
    from ringkv.llm.llm import LLM
    from ringkv.llm.open_answers import OnPrefill
    from ringkv.llm.result import Stream

STDIN = "-"
NEEDS_TEMPLATE = "--system needs a chat template, which a plain completion does not use; leave it out"


def read_prompt(question: str | None, text: str | None, file: str | None) -> str:
    """Return the document followed by the question; `-` for text or file is standard input.

    Raises EmptyPrompt if both are missing, InvalidRequest if a file is not text.
    """
    if text is not None and file is not None:
        raise InvalidRequest("--prompt and --prompt-file both set the document; leave one out", "prompt")
    document = read_file(STDIN) if text == STDIN else read_file(file) if file is not None else text
    parts = [part for part in (document, question) if part is not None and part.strip()]
    if not parts:
        raise EmptyPrompt("the prompt is empty; give a question, --prompt TEXT or --prompt-file FILE")
    return "\n\n".join(parts)


def stream_answer(
    llm: "LLM",
    prompt: str,
    system: str | None,
    raw: bool,
    params: "SamplingParams",
    on_prefill: "OnPrefill",
    kv: "KVChoice | None" = None,
) -> "Stream":
    """Stream the answer; the prompt is put in the chat template unless `raw` is set or the model has none."""
    from ringkv.text.chat_template import ChatTemplate

    if not raw and ChatTemplate.find(llm.config.model_dir):
        messages = [*system_message(system), {"role": "user", "content": prompt}]
        return llm.stream_chat(messages, params, kv=kv, on_prefill=on_prefill)
    if system is not None:
        raise InvalidRequest(NEEDS_TEMPLATE, "system")
    return llm.stream(prompt, params, kv=kv, on_prefill=on_prefill)


def system_message(system: str | None) -> list[dict[str, str]]:
    return [] if system is None else [{"role": "system", "content": system}]


def read_file(path: str) -> str:
    """Return the text of a file; `-` is standard input. Raises InvalidRequest if it is unreadable or not UTF-8."""
    name = "standard input" if path == STDIN else path
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).expanduser().read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read ({error.strerror}); give a text file", "prompt") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{name} is not UTF-8 text (byte {error.start} is {data[error.start]:#04x}); convert it first", "prompt"
        ) from None
