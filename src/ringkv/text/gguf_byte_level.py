"""Byte-level BPE from a GGUF, with the rule that splits its text before merging."""

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.text.gguf_split_rules import RULES, SplitRule
from ringkv.text.gguf_vocabulary import Vocabulary


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
    words = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    return [*digits, *words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not rule.patterns)]
