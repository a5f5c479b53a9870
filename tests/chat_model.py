"""A tiny chat model on disk: a random Llama whose tokens are bytes, with a template."""

from pathlib import Path
from typing import Any

from tests import byte_tokenizer
from tests.byte_tokenizer import EOS
from tests.engine import tiny

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"


def save(folder: Path, **changes: Any) -> Path:
    tiny.save(folder, "Llama", **{"vocab_size": 258, "eos_token_id": EOS, **changes})
    return byte_tokenizer.save(folder, TEMPLATE)
