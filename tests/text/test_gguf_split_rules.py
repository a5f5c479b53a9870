"""Each rule of splitting: against transformers' pattern for it, or on text that is split by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS as THEIRS

from ringkv.text.gguf_split_rules import RULES
from ringkv.text.gguf_tokenizer import byte_level
from ringkv.text.gguf_vocabulary import Vocabulary

BYTES = ByteLevel.alphabet()
TEXTS = st.text() | st.text(alphabet="ab Dog's DON'T 12345٣Ⅷ  \t\n\r/.,!? éte\u0301日本語ǅʰ😀")


def words(rule: str, text: str) -> list[str]:
    """Return the words that the tokenizer of a file with this rule merges bytes in."""
    tokens = {"model": "gpt2", "pre": rule, "tokens": list(BYTES)}
    splitter = byte_level(Vocabulary({f"tokenizer.ggml.{key}": value for key, value in tokens.items()}, "x.gguf"))
    assert splitter.pre_tokenizer is not None
    return [text[slice(*span)] for _, span in splitter.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("rule", sorted(set(RULES) & set(THEIRS)))
@given(text=TEXTS)
def test_a_rule_splits_as_transformers_pattern_for_it(rule: str, text: str) -> None:
    theirs = pre_tokenizers.Split(Regex(THEIRS[rule]), behavior="isolated")
    assert words(rule, text) == [text[slice(*span)] for _, span in theirs.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("rule", "text", "split"),
    [
        ("glm4", "It's 12345 dogs\n\n  x", ["It", "'s", " ", "123", "45", " dogs", "\n\n", " ", " x"]),
        ("refact", "x1234  y", ["x", "1", "2", "3", "4", " ", " y"]),
        ("deepseek-v3", "It's 12345", ["It", "'s", " ", "123", "45"]),
        ("deepseek-v3", "a日本ひらx$x\n\n  b", ["a", "日本ひら", "x", "$x", "\n\n", " ", " b"]),
        ("deepseek-v3", "한국 +=\n", ["한국", " +=\n"]),
        ("hunyuan-dense", "It's 12345 日本 +=\n", ["It", "'s", " ", "123", "45", " ", "日本", " +=\n"]),
        ("hunyuan", "It's 12 +=\n  x", ["It", "'s", " ", "1", "2", " +=\n", " ", " x"]),
        ("deepseek-llm", "It's 12345", ["It", "'", "s", " ", "1", "2", "3", "4", "5"]),
        ("deepseek-llm", "a\n\nb.  Cd  ", ["a", "\n", "\n", "b", ".", " ", " Cd", "  "]),
        ("deepseek-llm", "日本x、Жà\u0531\u0561", ["日本", "x", "、", "Жà\u0531", "\u0561"]),
    ],
)
def test_a_text_is_split_as_by_hand(rule: str, text: str, split: list[str]) -> None:
    assert words(rule, text) == split
