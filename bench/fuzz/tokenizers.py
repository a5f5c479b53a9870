"""Tokenizer files: wrong types, missing keys, deep nesting, truncation and flipped bytes in each of them."""

import json
import os
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from bench.fuzz.mutate import CONTROL, cut, deep, flipped, inner, mutated_json, nested
from bench.fuzz.target import Target
from bench.fuzz.tiny_models import in_folder
from ringkv.base.errors import InvalidRequest
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer

TEXT = f"Hello, wörld 日本 {CONTROL[1]}\n\t  12345 \U000f0000"
TEMPLATE = "{% for m in messages %}" + CONTROL[0] + "{{ m.role }}:{{ m.content }}" + CONTROL[1] + "{% endfor %}"
MESSAGES = [{"role": "system", "content": "Hi"}, {"role": "user", "content": TEXT}]


@cache
def _files() -> dict[str, Any]:
    """Return the files of an ordinary directory."""
    return {
        "tokenizer.json": json.loads(inner().to_str()),
        "tokenizer_config.json": {
            "eos_token": CONTROL[1],
            "bos_token": {"content": CONTROL[0]},
            "add_bos_token": True,
            "add_eos_token": False,
            "chat_template": TEMPLATE,
        },
        "special_tokens_map.json": {"pad_token": CONTROL[1], "unk_token": None},
        "config.json": {"eos_token_id": [257], "bos_token_id": 256},
        "generation_config.json": {"eos_token_id": 257},
    }


def _make(random: Random) -> dict[str, bytes]:
    """Return the bytes of each file; one or two are damaged."""
    files = {name: json.dumps(value).encode() for name, value in _files().items()}
    for name in random.sample(sorted(files), random.randint(1, 2)):
        mutated = partial(_mutated, name=name)
        files[name] = random.choice((mutated, mutated, mutated, cut, flipped, deep))(random, files[name])
    return files


def _mutated(random: Random, _: bytes, name: str) -> bytes:
    value = _files()[name]
    if name == "tokenizer.json" and random.random() < 0.7:  # its vocabulary would hide the other parts
        key = random.choice(("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens", "model"))
        part = random.choice((mutated_json(random, value[key]), *map(dict, PARTS), nested(random, value[key])))
        value = {**value, key: part}
    else:
        value = mutated_json(random, value)
    return json.dumps(value).encode()


PARTS: Any = (
    {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "z" * 1000},
    {"type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": [], "processors": []},
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": True},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA////"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [],
     "special_tokens": {}},
    {"type": "ByteFallback"}, {"type": "Strip", "content": "", "start": 2**63, "stop": 0},
    {"type": "Unigram", "unk_id": 5, "vocab": [["a", -1.0]], "byte_fallback": True},
    {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "", "vocab": {},
     "max_input_chars_per_word": 0},
    {"type": "BPE", "vocab": {"a": 4294967295, "b": 0}, "merges": [["a", "b"]], "dropout": 2.0},
)  # fmt: skip


def _run(files: dict[str, bytes]) -> None:
    """Load the directory as a server does, and use the tokenizer."""

    def use(folder: Path) -> None:
        os.environ["RINGKV_CACHE"] = str(folder)  # each file is new, so none is remembered
        tokenizer = Tokenizer.from_directory(folder)
        tokenizer.decode(tokenizer.encode(TEXT))
        tokenizer.check_length(TEXT * 10, 3_000)
        with suppress(InvalidRequest):
            template = ChatTemplate.from_directory(folder)
            template.encode(MESSAGES, tokenizer)

    in_folder(files, use)


TOKENIZERS = Target("tokenizer files of a model directory", _make, _run, _files)
