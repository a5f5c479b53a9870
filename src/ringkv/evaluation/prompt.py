"""TokenizedPrompt: a sample as tokens to prefill, and tokens that come after compression."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import Place, Sample
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenizedPrompt:
    """forced: tokens fed after the compressed prompt, before sampling: a question, or a text to score.

    following: tokens of the conversation's next turn, whose prompt they end; it continues from what was kept.
    """

    tokens: tuple[int, ...]
    forced: tuple[int, ...] = ()
    following: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """A hash that distinguishes prompts of the same name."""
        parts = (self.tokens, self.forced, *((self.following,) if self.following else ()))
        return sha256(repr(parts).encode()).hexdigest()[:12]

    @property
    def prefilled(self) -> tuple[int, ...]:
        """All tokens that are prefilled: those of the next turn too."""
        return self.tokens + self.following


class PromptBuilder:
    """Turns samples into prompts of one model, with at most `longest` tokens, and at most `context` with the answer.

    Context and question are encoded separately, so a question has the same tokens in both places. A base model has no
    chat template and gets the bare text.
    """

    def __init__(self, folder: Path, longest: int, context: int) -> None:
        self.tokenizer = Tokenizer.from_directory(folder)
        self._folder, self._longest, self._context = folder, longest, context

    def count_tokens(self, sample: Sample) -> int:
        """Tokens of the whole prompt, question included."""
        context, question = self._parts(sample)
        return len(context) + len(question)

    def make(self, sample: Sample, place: Place) -> TokenizedPrompt:
        """Tokenize a sample. A context that is too long loses its middle, as in LongBench."""
        context, question = self._parts(sample)
        room = min(self._longest, self._context - sample.answer_tokens) - len(question)
        if room < 2:
            raise InvalidRequest(
                f"a question of {len(question):,} tokens leaves no room for its context; raise the lengths", "lengths"
            )
        if len(context) > room:
            context = context[: room // 2] + context[len(context) - (room - room // 2) :]
        return _AT[place](tuple(context), tuple(question))

    def _parts(self, sample: Sample) -> tuple[list[int], list[int]]:
        before, after = self._texts(sample)
        is_bare = self._template is None or not sample.is_chat
        encode = self.tokenizer.encode
        return encode(before, add_special_tokens=is_bare), encode(after, add_special_tokens=False) if after else []

    def _texts(self, sample: Sample) -> tuple[str, str]:
        """The prompt up to its question, and the rest with the first words of the answer."""
        if self._template is None or not sample.is_chat:
            return sample.context, sample.question + sample.begin
        text = self._template.render([{"role": "user", "content": sample.context + sample.question}])
        question = sample.question.rstrip()  # templates may trim a message
        start = text.rindex(question) if question else len(text)
        return text[:start], text[start:] + sample.begin

    @cached_property
    def _template(self) -> ChatTemplate | None:
        return ChatTemplate.find(self._folder)


_AT: Mapping[Place, Callable[[tuple[int, ...], tuple[int, ...]], TokenizedPrompt]] = {
    "inside": lambda context, question: TokenizedPrompt(context + question),
    "after": lambda context, question: TokenizedPrompt(context, forced=question),
    "next": lambda context, question: TokenizedPrompt(context, following=question),
}
