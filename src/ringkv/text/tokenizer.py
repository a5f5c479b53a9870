"""Tokenizer: text to token ids and back, from a directory in Hugging Face layout."""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from ringkv.base.errors import BadWeights, InvalidRequest, PromptTooLong, RingKVError, UnsupportedModel
from ringkv.base.shown import one_line
from ringkv.machine.folders import cache_dir
from ringkv.text.files import check_size, read_json
from ringkv.text.literals import PRIVATE_USE, PromptText
from ringkv.text.pieces import Detokenizer, TokenPieces
from ringkv.text.special_tokens import bos_id, eos_ids, special_tokens
from ringkv.text.tokenizer_trial import fault

# Other tokenizer files; transformers can convert each to tokenizer.json.
OLDER_FORMATS = ("tokenizer.model", "spiece.model", "vocab.json", "tekken.json", "qwen.tiktoken")
LARGEST_FILE = 256 << 20  # bytes of tokenizer.json; a vocabulary of 262,144 entries has 33 MB
LARGEST_ID = 1 << 24  # of a token; masks have a bit for each id up to the largest
PER_TOKEN, LEAST = 64, 1 << 16  # characters that are tokenised for each token that fits, and in any case
LONG_TEXT = 1 << 18  # characters; longer texts are tokenised in turn, because they take 100 bytes per character
PAIRED_TAG = re.compile(r"</?(\w+)>")


class Tokenizer:
    """A model's tokenizer.

    eos_ids: every id that ends a text. bos_id: the beginning-of-sequence id, None if the model has none.
    special_ids: ids that `decode` skips. pieces: the bytes of each token. special: the text of each token with a role,
    such as "pad_token".
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        name: str,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        special: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        inner.no_truncation()  # truncation and padding in the file are for training
        inner.no_padding()
        self._inner = inner
        self._of = Path(name).parent.name or name  # the model's directory
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        self.special = special
        self.pieces = TokenPieces.of(inner, name)
        self.special_ids = self.pieces.special_ids
        self._long_texts = threading.Lock()

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus 1. The model's vocabulary may be padded beyond it."""
        return max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def check_length(self, text: str, limit: int, field: str = "prompt") -> None:
        """Raise PromptTooLong, naming `field`, if `text` is longer than any reasonable text of `limit` tokens.

        It is not tokenised, which takes over a second and 100 MB for a million characters. Raises InvalidRequest for a
        text with half of a surrogate pair.
        """
        longest = max(LEAST, PER_TOKEN * limit)
        if len(text) > longest:
            raise PromptTooLong(
                f"{field} has {len(text):,} characters, and {limit:,} tokens fit, of {longest:,} characters at most; "
                "shorten it",
                field,
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{field} has half of a surrogate pair, which is no text; remove it", field) from error

    @classmethod
    def from_directory(cls, directory: Path | str) -> "Tokenizer":
        """Load tokenizer.json and apply the configs beside it.

        Raises BadWeights for a missing or unreadable file, UnsupportedModel for a tokenizer of another kind.
        """
        directory = Path(directory)
        inner = load_inner(directory)
        path = directory / "tokenizer.json"
        with refused(f"{path} does not read as a tokenizer"):
            special = special_tokens(directory)
            _apply_config(inner, read_json(directory / "tokenizer_config.json"), special)
            bos, eos = bos_id(directory, inner.token_to_id), eos_ids(directory, inner.token_to_id)
            if (largest := max([*inner.get_vocab(with_added_tokens=True).values(), bos or 0, *eos])) > LARGEST_ID:
                raise BadWeights(
                    f"the tokenizer in {directory} has the token id {largest:,}; ringkv reads ids up to "
                    f"{LARGEST_ID:,}, so download it again"
                )
            return cls(inner, str(path), bos, eos, special)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; `add_special_tokens` adds the model's beginning (and end) tokens."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_prompt(self, prompt: PromptText) -> list[int]:
        """Return the ids of a prompt. No special token covers one of its breaks, and none is added around it."""
        if not prompt.breaks:
            return self.encode(prompt.text, add_special_tokens=False)
        if self.token_id("<0xF3>") is None:  # a character without an entry does not become bytes
            return [id for ids in self.encode_batch(prompt.pieces(), add_special_tokens=False) for id in ids]
        # SentencePiece puts a space before each text. So the pieces stay one text, with a character at the breaks that
        # has no entry in the vocabulary and becomes bytes, which are removed again.
        divider = next(char for char in map(chr, PRIVATE_USE) if char not in prompt.text)
        ids = self.encode(divider.join(prompt.pieces()), add_special_tokens=False)
        return _without(ids, [self._inner.token_to_id(f"<0x{byte:02X}>") for byte in divider.encode()])

    def control_texts(self, template: str) -> list[str]:
        """Return the texts of added tokens that structure a prompt: special tokens, and those that the template writes.

        Excepted are paired tags such as <think> and </think>, with which a model marks parts of its own text.
        """
        added = self._inner.get_added_tokens_decoder().values()
        texts = {token.content for token in added if token.special or token.content in template}
        tags = {text: tag[1] for text in texts if (tag := PAIRED_TAG.fullmatch(text))}
        paired = {text for text, name in tags.items() if {f"<{name}>", f"</{name}>"} <= texts}
        roles = (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,)))
        paired -= {*self.special.values(), *map(self._inner.id_to_token, roles)}
        return sorted(text for text in texts - paired if text.strip())

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        is_long = sum(map(len, texts)) > LONG_TEXT
        try:
            with self._long_texts if is_long else nullcontext():
                encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(f"the text is not valid Unicode ({error}); remove lone surrogates") from error
        except BaseException as error:  # tokenizers raises bare Exception, e.g. for a character that has no token
            if not _is_of_library(error):
                raise
            raise InvalidRequest(
                f"the tokenizer of {self._of} cannot encode the text ({one_line(error)}); "
                "send another text, or download tokenizer.json again"
            ) from error
        return [list(encoding.ids) for encoding in encodings]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; invalid UTF-8 becomes U+FFFD, ids outside the vocabulary are skipped."""
        detokenizer = self.detokenizer(skip_special_tokens)
        return "".join(map(detokenizer.push, ids)) + detokenizer.finish()

    def detokenizer(self, skip_special_tokens: bool = True, continues: bool = False) -> Detokenizer:
        """Return a new detokenizer; `continues` is for output that follows a prompt and keeps a space at its start."""
        return Detokenizer(self.pieces, skip_special_tokens, continues)

    def to_json(self) -> str:
        """Return the content of a tokenizer.json that includes the changes of the configs."""
        return self._inner.to_str()

    def token_id(self, token: str) -> int | None:
        """Return the id of a vocabulary entry, such as "<|im_end|>"."""
        return self._inner.token_to_id(token)

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that token `id` adds to a text; they may be part of a code point."""
        return self.pieces[id]

    def token_text(self, id: int) -> str:
        """Return those bytes as text, with U+FFFD for incomplete code points."""
        return self.pieces[id].decode("utf-8", errors="replace")


def load_inner(directory: Path) -> tokenizers.Tokenizer:
    """Load tokenizer.json of `directory` with the `tokenizers` library. Raises like `from_directory`."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise _missing(directory)
    check_size(path, LARGEST_FILE)
    if reason := fault(path, cache_dir() / "tokenizers"):
        raise BadWeights(f"{path} does not read as a tokenizer ({reason}); download it again")
    with refused(f"{path} does not read as a tokenizer"):
        return tokenizers.Tokenizer.from_file(str(path))


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turn errors other than ours into BadWeights: a file from the internet may have any type in any place.

    what: the beginning of the message.
    """
    try:
        yield
    except RingKVError:
        raise
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise BadWeights(f"{what} ({one_line(error)}); download it again") from error


def _is_of_library(error: BaseException) -> bool:
    """Whether tokenizers may raise it: bare Exception, and PanicException, which is not an Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _without(ids: Sequence[int], run: Sequence[int | None]) -> list[int]:
    """Return `ids` without each occurrence of `run`."""
    kept: list[int] = []
    for id in ids:
        kept.append(id)
        if kept[-len(run) :] == run:
            del kept[-len(run) :]
    return kept


def _missing(directory: Path) -> BadWeights | UnsupportedModel:
    older = [name for name in OLDER_FORMATS if (directory / name).is_file()]
    if not older:
        return BadWeights(f"{directory} has no tokenizer.json; copy it there from the original model")
    make = f"AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
    return UnsupportedModel(
        f"{directory} has {older[0]} but no tokenizer.json, which ringkv reads; make one with transformers: {make}"
    )


def _apply_config(inner: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str]) -> None:
    """Change `inner` in place: add_bos_token and add_eos_token of the config, if set, override tokenizer.json."""
    ids = inner.encode("", add_special_tokens=True).ids
    added, wanted = [], []
    for role, end in (("bos", ids[:1]), ("eos", ids[-1:])):
        token, setting = special.get(f"{role}_token"), config.get(f"add_{role}_token")
        added.append(token is not None and end == [inner.token_to_id(token)])
        wanted.append(token if (added[-1] if setting is None else setting) else None)
    if [token is not None for token in wanted] != added:
        inner.post_processor = surround(inner, *wanted)


def surround(inner: tokenizers.Tokenizer, begin: str | None, end: str | None) -> TemplateProcessing:
    """Return the post-processor that adds the tokens `begin` and `end` to a text; None adds nothing."""
    around = [token for token in (begin, end) if token is not None]
    single = [token for token in (begin, "$A", end) if token is not None]
    return TemplateProcessing(
        single=single,
        pair=[*single, "$B:1"],
        special_tokens=[(token, inner.token_to_id(token)) for token in dict.fromkeys(around)],
    )
