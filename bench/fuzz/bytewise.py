"""A tokenizer of bytes for fuzzing, so that no model is needed: id = byte, then two control tokens."""

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ringkv.text.pieces import byte_alphabet
from ringkv.text.tokenizer import Tokenizer

CONTROL = ("<|im_start|>", "<|im_end|>")
VOCAB = 258
END = 257


def inner() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    return made


def bytewise() -> Tokenizer:
    return Tokenizer(inner(), "bytes", None, (END,))
