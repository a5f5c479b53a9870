"""Byte-level BPE from a GGUF: how each named rule splits text before merging."""

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.text.gguf_vocabulary import Vocabulary


@dataclass(frozen=True)
class SplitRule:
    """How one model family splits text into words before merging.

    pattern: matches the words of a text, None for GPT-2's pattern. single_digits: each digit is split off first.
    composes: text is normalised to NFC first. whole_words: a word that is a token is not merged.
    """

    pattern: str | None = None
    single_digits: bool = False
    composes: bool = False
    whole_words: bool = False


def _words(digits: str) -> str:
    """Return the pattern of tokenizers derived from GPT-4's; they differ in the digits per word."""
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    signs = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    spaces = r"\s*[\r\n]+|\s+(?!\S)|\s+"
    return "|".join([contractions, letters, digits, signs, spaces])


GPT2 = SplitRule()
SMOLLM = SplitRule(single_digits=True)
QWEN2 = SplitRule(pattern=_words(r"\p{N}"), composes=True)
LLAMA3 = SplitRule(pattern=_words(r"\p{N}{1,3}"), whole_words=True)

RULES = {
    "gpt-2": GPT2,
    "default": GPT2,
    "smollm": SMOLLM,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
}


def byte_level(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer. Raises UnsupportedModel for an unknown rule."""
    rule = _rule(vocabulary)
    model = models.BPE(vocabulary.ids, vocabulary.merges(), ignore_merges=rule.whole_words)
    tokenizer = Tokenizer(model)
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_splits(rule))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(vocabulary.added_tokens())
    return tokenizer


def _rule(vocabulary: Vocabulary) -> SplitRule:
    if vocabulary.pre not in RULES:
        raise UnsupportedModel(
            f"{vocabulary.name} splits text by the rule {shown(vocabulary.pre or '(none)')}, ringkv knows "
            f"{', '.join(RULES)}; put the model's tokenizer.json next to the .gguf"
        )
    return RULES[vocabulary.pre]


def _splits(rule: SplitRule) -> list[pre_tokenizers.PreTokenizer]:
    digits = [pre_tokenizers.Digits(individual_digits=True)] if rule.single_digits else []
    words = [pre_tokenizers.Split(Regex(rule.pattern), behavior="isolated")] if rule.pattern else []
    return [*digits, *words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.pattern is None)]
