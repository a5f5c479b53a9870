"""gguf_split_rules: how each named rule, tokenizer.ggml.pre, splits text into words before merging."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SplitRule:
    """How one model family splits text into words before merging.

    patterns: each isolates its matches in what the patterns before left; none: GPT-2's pattern. single_digits: each
    digit is split off first. composes: text is normalised to NFC first. whole_words: a word that is a token is not
    merged.
    """

    patterns: tuple[str, ...] = ()
    single_digits: bool = False
    composes: bool = False
    whole_words: bool = False


SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
DIGITS, DIGIT = r"\p{N}{1,3}", r"\p{N}"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _of_gpt4(digits: str) -> tuple[str, ...]:
    """Return the pattern of tokenizers derived from GPT-4's; they differ in the digits per word."""
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    signs = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return ("|".join([SUFFIXES, letters, digits, signs, SPACES]),)


def _of_gpt4o(digits: str, suffixes: str) -> tuple[str, ...]:
    """Return the pattern of tokenizers derived from GPT-4o's: words end between a lower and an upper letter."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = (rf"[^\r\n\p{{L}}\p{{N}}]?{letters}{suffixes}" for letters in (f"{upper}*{lower}+", f"{upper}+{lower}*"))
    signs = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    return ("|".join([*words, digits, signs, SPACES]),)


LATER_LETTERS = (
    r"\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8a}\x{2d00}-\x{2d2d}\x{a790}-\x{a7fa}\x{ab30}-\x{ab68}"
    r"\x{10570}-\x{105bc}\x{10d50}-\x{10d85}\x{16e40}-\x{16e7f}\x{1d400}-\x{1d7cb}\x{1df00}-\x{1df2a}"
)
"""Cased letters that DeepSeek's first tokenizer does not know as letters."""
CASED = rf"[\p{{Lu}}\p{{Ll}}\p{{Lt}}&&[^{LATER_LETTERS}]]"
PUNCTUATION = r"[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]"

GPT2 = SplitRule()
SMOLLM = SplitRule(single_digits=True)
GPT4 = SplitRule(_of_gpt4(DIGITS))
QWEN2 = SplitRule(_of_gpt4(DIGIT), composes=True)
LLAMA3 = SplitRule(_of_gpt4(DIGITS), whole_words=True)
GPT4O = SplitRule(_of_gpt4o(DIGITS, f"{SUFFIXES}?"), whole_words=True)
TEKKEN = SplitRule(_of_gpt4o(DIGIT, ""), whole_words=True)
DEEPSEEK_LLM = SplitRule(
    (
        r"[\r\n]",
        rf"\s?{CASED}+",
        rf"\s?{PUNCTUATION}+",
        r"\s+$",
        r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+",
        DIGIT,
    )
)
DEEPSEEK_V3 = SplitRule(
    (
        DIGITS,
        r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+",
        "|".join(
            [
                r"[!-/:-@\[-`{-~][A-Za-z]+",
                r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
                r" ?[\p{P}\p{S}]+[\r\n]*",
                SPACES,
            ]
        ),
    )
)

RULES: Mapping[str, SplitRule] = {
    "gpt-2": GPT2,
    "default": GPT2,
    "smollm": SMOLLM,
    "refact": SMOLLM,  # Granite 3
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "smaug-bpe": LLAMA3,  # SmolLM3
    "dbrx": GPT4,  # Granite 4, OLMo 2, Phi-4
    "chatglm-bpe": GPT4,
    "glm4": GPT4,
    "gpt-4o": GPT4O,  # gpt-oss, Phi-4-mini
    "tekken": TEKKEN,  # Mistral
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-v3": DEEPSEEK_V3,
    "hunyuan-dense": DEEPSEEK_V3,
    "hunyuan": QWEN2,  # with experts
}
