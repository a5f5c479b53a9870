"""A tiny GGUF with a tokenizer."""

from pathlib import Path

import pytest
from gguf import TokenType
from tokenizers.pre_tokenizers import ByteLevel

from tests.weights.tiny_gguf import tiny_model, write_tiny

LETTERS = sorted(ByteLevel.alphabet())  # one token per byte
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*LETTERS, "<|im_end|>", "th"],
    "tokenizer.ggml.token_type": [*[int(TokenType.NORMAL)] * 256, int(TokenType.CONTROL), int(TokenType.NORMAL)],
    "tokenizer.ggml.merges": ["t h"],
    "tokenizer.ggml.eos_token_id": 256,
}


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    model = tiny_model("Llama", vocab_size=258)
    return write_tiny(tmp_path / "tiny model.gguf", model, metadata=TOKENIZER)
