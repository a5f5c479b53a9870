"""Small tokenizers of both families, and the real GGUF files if they are available."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from ringkv.text.tokenizer import Tokenizer
from tests import byte_tokenizer
from tests.text.gguf_files import byte_level_keys, sentencepiece_keys, write_gguf

__all__ = ["byte_level_keys", "sentencepiece_keys", "write_gguf"]

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog's owner didn't mind 12345 times.",
    "def add(left, right):\n    return left + right  # 42\n",
    "naïve café über 日本語のテキスト 한국어 العربية 😀😀🎉",
] * 3


@pytest.fixture(scope="session")
def byte_level_inner() -> tokenizers.Tokenizer:
    """Byte-level BPE trained on a few sentences, with <|end|> (special) and <tool> (not) added."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    inner.add_special_tokens([AddedToken("<|begin|>"), AddedToken("<|end|>")])
    inner.add_tokens([AddedToken("<tool>", normalized=False)])
    return inner


@pytest.fixture(scope="session")
def sentencepiece_inner() -> tokenizers.Tokenizer:
    """SentencePiece-like BPE with byte fallback: ids 0..2 are special, 3..258 bytes, then a few pieces."""
    special = ["<unk>", "<s>", "</s>"]
    merged = ["he", "ll", "hell", "hello", "▁▁", "▁hello", "▁w", "or", "▁wor", "ld", "▁world"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁helowrdé日", *merged]
    merges = ["h e", "l l", "he ll", "hell o", "▁ ▁", "▁ hello", "▁ w", "o r", "▁w or", "l d", "▁wor ld"]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return inner


@pytest.fixture(scope="session")
def byte_level(byte_level_inner: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(byte_level_inner, "tiny", None, ())


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_inner: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(sentencepiece_inner, "tiny", 1, (2,))


@pytest.fixture
def model_dir(byte_level_inner: tokenizers.Tokenizer, tmp_path: Path) -> Callable[..., Path]:
    """Make a directory with the byte-level tokenizer and JSON files by name: model_dir(config={...})."""

    def make(**files: object) -> Path:
        byte_level_inner.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return make


def _tokenizer_of(name: str, out: Path, fetch: bool) -> Path:
    """Return a directory with the tokenizer written from a catalogue model's GGUF."""
    from ringkv.base.errors import PullFailed
    from ringkv.residency.catalogue import catalogued
    from ringkv.residency.pull import pull, pulled_path
    from ringkv.text.gguf_tokenizer import write_tokenizer

    try:
        path = pull(name) if fetch else pulled_path(catalogued(name))
    except PullFailed as error:
        pytest.skip(f"{name} could not be fetched: {error}")
    if not path.is_file():
        pytest.skip(f"{name} is not in the cache folder; `ringkv pull {name}` gets it")
    write_tokenizer(path, out)
    return out


@pytest.fixture(scope="session")
def smollm2_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's tokenizer, written from its GGUF."""
    return _tokenizer_of("smollm2", tmp_path_factory.mktemp("smollm2"), fetch=True)


@pytest.fixture(scope="session")
def qwen_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2.5-Coder's tokenizer, written from its GGUF if it was pulled."""
    return _tokenizer_of("qwen2.5-coder-1.5b", tmp_path_factory.mktemp("qwen"), fetch=False)


@pytest.fixture(scope="session")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token a byte, token id = byte; then <|im_start|> = 256 and <|im_end|> = 257, which ends a text."""
    return Tokenizer.from_directory(byte_tokenizer.save(tmp_path_factory.mktemp("bytewise")))
