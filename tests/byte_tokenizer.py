"""A tokenizer on disk whose tokens are bytes."""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ringkv.text.pieces import byte_alphabet

IM_START, IM_END = 256, 257
EOS = IM_END


def save(folder: Path, template: str | None = None) -> Path:
    """Token id = byte; then <|im_start|> = 256 and <|im_end|> = 257, which ends a text."""
    inner = tokenizers.Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    inner.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
