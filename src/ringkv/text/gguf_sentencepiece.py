"""SentencePiece BPE from a GGUF: text without a token becomes bytes.

Merges are derived from scores. Gemma 4's files list them.
"""

from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, normalizers

from ringkv.text.gguf_vocabulary import TokenType, Vocabulary

SPACE = "▁"  # how SentencePiece writes a space
MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)


def sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer. A text is one word; the pair with the best-scored product is merged first."""
    return _tokenizer(vocabulary, _merges(vocabulary))


def gemma4(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer that merges in the order of the file."""
    return _tokenizer(vocabulary, vocabulary.merges())


def _tokenizer(vocabulary: Vocabulary, merges: list[tuple[str, str]]) -> Tokenizer:
    unknown = vocabulary.role("unknown") or _first_unknown(vocabulary)
    model = models.BPE(vocabulary.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if vocabulary.adds_space() else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, spaces])
    strip = [decoders.Strip(" ", 1, 0)] if vocabulary.adds_space() else []
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_tokens(vocabulary.added_tokens())
    return tokenizer


def _first_unknown(vocabulary: Vocabulary) -> str | None:
    unknown = (id for id, type in enumerate(vocabulary.types) if type == TokenType.UNKNOWN)
    return next((vocabulary.tokens[id] for id in unknown), None)


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return every pair of tokens whose concatenation is a token, the best-scored one first."""
    scores, ids = vocabulary.scores(), vocabulary.ids

    def rank(pair: tuple[str, str]) -> tuple[float, int]:
        # SentencePiece merges equal scores from the left, so among pairs of one product the longest left half is first.
        return -scores[ids["".join(pair)]], -len(pair[0])

    return sorted(_pairs(vocabulary), key=rank)


def _pairs(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    ids = vocabulary.ids
    for token, id in ids.items():
        if vocabulary.types[id] in MERGED:
            halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
            yield from ((left, right) for left, right in halves if left in ids and right in ids)
