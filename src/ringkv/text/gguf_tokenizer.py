"""Converts a GGUF's tokenizer to the files of a directory in Hugging Face layout."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.text.files import write_atomically, write_json
from ringkv.text.gguf_split_rules import RULES
from ringkv.text.gguf_vocabulary import TokenType, Vocabulary
from ringkv.text.tokenizer import load_inner, refused, surround
from ringkv.weights.gguf.header import read_header

# Tokens that end a text in any model. A GGUF names one or two ids; its model may use more.
END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
)
TEXT_ENDS = ("<|tool_response>",)  # Gemma 4 ends an answer with it; its files have it as text, so that it is shown
CALLS = ("<|return|>", "<|call|>")  # end an answer in gpt-oss' format, where <|end|> ends one of its messages

SPACE = "▁"  # how SentencePiece writes a space
SAMPLING = {  # field of generation_config.json -> key of llama.cpp's, after "general.sampling."
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def write_tokenizer(gguf_path: Path, out_dir: Path, sampling: Mapping[str, float] = MappingProxyType({})) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json of `gguf_path` into `out_dir`.

    sampling: is added to generation_config.json, or replaces what the GGUF recommends.

    A tokenizer.json beside the GGUF is copied instead, with its config files.
    Raises UnsupportedModel for an unsupported kind of tokenizer, BadWeights for an unreadable file.
    """
    vocabulary = Vocabulary(read_header(gguf_path).metadata, str(gguf_path))
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json(out_dir / "tokenizer_config.json", _config(vocabulary))
    write_json(out_dir / "generation_config.json", {**_generation(vocabulary), **sampling})
    if (gguf_path.parent / "tokenizer.json").is_file():
        _copy_files(gguf_path, out_dir, vocabulary)
    else:
        write_atomically(out_dir / "tokenizer.json", _build(vocabulary).to_str())


def _build(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    if vocabulary.model not in BUILDERS:
        raise UnsupportedModel(
            f"{vocabulary.name} has a tokenizer of kind {shown(vocabulary.model)}, "
            f"ringkv builds {', '.join(BUILDERS)}; put the model's tokenizer.json next to the .gguf"
        )
    with refused(f"the tokenizer in {vocabulary.name} is broken"):
        inner = BUILDERS[vocabulary.model](vocabulary)
    begin, end = (vocabulary.role(role) if vocabulary.adds(role) else None for role in ("bos", "eos"))
    if begin or end:
        inner.post_processor = surround(inner, begin, end)
    return inner


def _copy_files(gguf_path: Path, out_dir: Path, vocabulary: Vocabulary) -> None:
    last = max(load_inner(gguf_path.parent).get_vocab().values(), default=-1)
    if last >= len(vocabulary.tokens):
        raise BadWeights(
            f"{gguf_path.parent / 'tokenizer.json'} goes up to token {last}, {gguf_path.name} has "
            f"{len(vocabulary.tokens)}; it belongs to another model, so move it away"
        )
    for name in COPIED:
        if (gguf_path.parent / name).is_file():
            shutil.copyfile(gguf_path.parent / name, out_dir / name)


def _config(vocabulary: Vocabulary) -> dict[str, Any]:
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocabulary.adds("bos"),
        "add_eos_token": vocabulary.adds("eos"),
        "clean_up_tokenization_spaces": False,
        **{f"{ours}_token": vocabulary.role(theirs) for ours, theirs in roles.items()},
        **({"chat_template": templates} if (templates := vocabulary.chat_templates()) else {}),
    }


def _generation(vocabulary: Vocabulary) -> dict[str, Any]:
    named = [vocabulary.role_id(role) for role in ("eos", "eot", "eom")]
    ends_messages = ("<|end|>",) if all(token in vocabulary.ids for token in CALLS) else ()
    text_ends = [vocabulary.ids[token] for token in TEXT_ENDS if token in vocabulary.ids]
    known = [id for id in vocabulary.special_ids if vocabulary.tokens[id] in set(END_TOKENS) - set(ends_messages)]
    ends = [id for id in [*named, *known, *text_ends] if id is not None]
    recommended = {name: vocabulary.metadata.get(f"general.sampling.{key}") for name, key in SAMPLING.items()}
    sampling = {name: value for name, value in recommended.items() if value is not None}
    return {"bos_token_id": vocabulary.role_id("bos"), "eos_token_id": list(dict.fromkeys(ends)), **sampling}


def byte_level(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer. Raises UnsupportedModel for an unknown rule."""
    if vocabulary.pre not in RULES:
        raise UnsupportedModel(
            f"{vocabulary.name} splits text by the rule {shown(vocabulary.pre or '(none)')}, ringkv knows "
            f"{', '.join(RULES)}; put the model's tokenizer.json next to the .gguf"
        )
    rule = RULES[vocabulary.pre]
    model = models.BPE(vocabulary.ids, vocabulary.merges(), ignore_merges=rule.whole_words)
    tokenizer = Tokenizer(model)
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    digits = [pre_tokenizers.Digits(individual_digits=True)] if rule.single_digits else []
    words = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    characters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not rule.patterns)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, *words, characters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(vocabulary.added_tokens())
    return tokenizer


def sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer: a text is one word, and characters without a token become bytes.

    The pair with the best-scored product is merged first. Gemma 4's files list the merges instead.
    """
    merges = vocabulary.merges() if vocabulary.model == "gemma4" else _merges(vocabulary)
    unknown = vocabulary.role("unknown") or next(
        (token for token, type in zip(vocabulary.tokens, vocabulary.types, strict=True) if type == TokenType.UNKNOWN),
        None,
    )
    model = models.BPE(vocabulary.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    prefix = [normalizers.Prepend(SPACE)] if vocabulary.adds_space() else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if vocabulary.adds_space() else []
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_tokens(vocabulary.added_tokens())
    return tokenizer


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return every pair of tokens whose concatenation is a token, the best-scored product first."""
    scores, ids = vocabulary.scores(), vocabulary.ids
    merged = (token for token, id in ids.items() if vocabulary.types[id] in MERGED)
    halves = ((token[:cut], token[cut:]) for token in merged for cut in range(1, len(token)))
    pairs = ((left, right) for left, right in halves if left in ids and right in ids)
    # SentencePiece merges equal scores from the left, so among pairs of one product the longest left half is first.
    return sorted(pairs, key=lambda pair: (-scores[ids["".join(pair)]], -len(pair[0])))


BUILDERS: dict[str, Callable[[Vocabulary], tokenizers.Tokenizer]] = {
    "gpt2": byte_level,
    "llama": sentencepiece,
    "gemma4": sentencepiece,
}
