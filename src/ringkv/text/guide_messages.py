"""Messages between guide processes and the process that uses the guides.

seconds: processor time that a call may take.
"""

from typing import ClassVar, get_args

import msgspec

from ringkv.base.failure import Failure
from ringkv.wire.link import Codec


class GuideVocabulary(msgspec.Struct, frozen=True, array_like=True):
    """What a guide process knows of a model. tokenizer: the content of a tokenizer.json. size: of the vocabulary."""

    tokenizer: str
    eos_ids: tuple[int, ...]
    size: int

    def to_json(self) -> str:
        return self.tokenizer


class Make(msgspec.Struct, frozen=True, array_like=True):
    """Make the guide of this number. The reply is `Done`.

    dropped: guides that are not used any more.
    """

    purpose: ClassVar[str] = "compiling it"
    seconds: float
    guide: int
    grammar: str
    dropped: tuple[int, ...]


class Try(msgspec.Struct, frozen=True, array_like=True):
    """Compute a guide's first masks. The reply is `Done`."""

    purpose: ClassVar[str] = "computing its first token masks"
    seconds: float
    guide: int


class Next(msgspec.Struct, frozen=True, array_like=True):
    """Take tokens, then compute the mask for an answer of at most `left` more. The reply is `Mask`.

    dropped: as in `Make`.
    """

    purpose: ClassVar[str] = "computing a token mask"
    seconds: float
    guide: int
    taken: tuple[int, ...]
    left: int
    dropped: tuple[int, ...]


class GuideReady(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a guide process. process: its id."""

    process: int


class Done(msgspec.Struct, frozen=True, array_like=True):
    pass


class Mask(msgspec.Struct, frozen=True, array_like=True):
    """The fields of `base.guide.Guide`: the result of `allowed`, and `is_cut` after it.

    seconds: processor time that the call took.
    """

    tokens: bytes
    is_cut: bool
    seconds: float


class GuideFailed(msgspec.Struct, frozen=True, array_like=True):
    failure: Failure


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """The last message of a guide process, sent in its place. code: its exit status; -N if signal N ended it."""

    code: int


Call = Make | Try | Next
Reply = GuideReady | Done | Mask | GuideFailed | Ended

VOCABULARY, CALLS, REPLIES = Codec(GuideVocabulary), Codec(*get_args(Call)), Codec(*get_args(Reply))
