"""A tiny chat model on disk: a random Llama whose tokens are bytes, with a template."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ringkv.text.pieces import byte_alphabet
from tests.engine import tiny

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
EOS = 257


def save(folder: Path, **changes: Any) -> Path:
    """Ids 0 to 255 are bytes; then <|im_start|> = 256 and <|im_end|> = 257, which ends a text."""
    tiny.save(folder, "Llama", **{"vocab_size": 258, "eos_token_id": EOS, **changes})
    inner = tokenizers.Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    inner.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
