"""GGUF files with a tokenizer alone, written here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers

from ringkv.text.gguf_tokenizer import write_tokenizer
from ringkv.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# Best first, except runs of spaces: published files give them one score, below all others.
PIECES = ["▁", *"abcdé", "ab", "bc", "▁a", "abc", "cd", "bcd", "▁ab"]
RUNS = ["▁" * n for n in range(2, 17) if n != 15]
SCORES = {piece: -float(n) for n, piece in enumerate(PIECES)} | dict.fromkeys(RUNS, -1e9)

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def write_gguf(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Write a GGUF of metadata alone: write_gguf(**{key under tokenizer.ggml: value})."""

    def write(chat_template: str | None = None, **keys: Any) -> Path:
        path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in keys.items():
            _ADD[type(value)](writer, f"tokenizer.ggml.{key}", value)
        if chat_template:
            writer.add_chat_template(chat_template)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write


_ADD: dict[type, Callable[[gguf.GGUFWriter, str, Any], None]] = {
    str: gguf.GGUFWriter.add_string,
    bool: gguf.GGUFWriter.add_bool,
    int: gguf.GGUFWriter.add_uint32,
    list: gguf.GGUFWriter.add_array,
}


def load(gguf_path: Path) -> Tokenizer:
    write_tokenizer(gguf_path, gguf_path.parent / "out")
    return Tokenizer.from_directory(gguf_path.parent / "out")


@pytest.fixture(scope="session")
def byte_level_keys(byte_level_inner: tokenizers.Tokenizer) -> dict[str, Any]:
    """The trained byte-level vocabulary as a GGUF's keys, with padding such as converters add."""
    tokens = [token for token, _ in sorted(byte_level_inner.get_vocab().items(), key=lambda item: item[1])]
    types = {"<|begin|>": CONTROL, "<|end|>": CONTROL, "<tool>": USER_DEFINED}
    merges = json.loads(byte_level_inner.to_str())["model"]["merges"]
    padding = [f"[PAD{len(tokens) + n}]" for n in range(3)]
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*tokens, *padding],
        "token_type": [*(types.get(token, NORMAL) for token in tokens), *[UNUSED] * 3],
        "merges": [" ".join(pair) for pair in merges],
        "eos_token_id": tokens.index("<|end|>"),
        "bos_token_id": tokens.index("<|begin|>"),
    }


@pytest.fixture(scope="session")
def sentencepiece_keys() -> dict[str, Any]:
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *SCORES]
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + list(SCORES.values()),
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(SCORES)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
