"""Prompt: a sample as tokens: what is prefilled, and what is fed after compression."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.sample import Place, Sample
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """`forced` tokens follow the compressed prompt before anything is drawn: a question, or a text to be scored."""

    tokens: tuple[int, ...]
    forced: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """What tells it from another prompt of the same name."""
        return sha256(repr((self.tokens, self.forced)).encode()).hexdigest()[:12]


class Prompts:
    """From samples to prompts of one model: of at most `longest` tokens, and with their answers of at most `context`.

    Context and question are encoded apart, so both places of a question make the same tokens. A base model, which has
    no chat template, gets the bare text.
    """

    def __init__(self, folder: Path, longest: int, context: int) -> None:
        self.tokenizer = Tokenizer.from_directory(folder)
        self._folder, self._longest, self._context = folder, longest, context

    def tokens(self, sample: Sample) -> int:
        """How many tokens the whole prompt has."""
        context, question = self._parts(sample)
        return len(context) + len(question)

    def make(self, sample: Sample, place: Place) -> Prompt:
        """A context that is too long loses its middle, as LongBench's do."""
        context, question = self._parts(sample)
        room = min(self._longest, self._context - sample.answer_tokens) - len(question)
        if room < 2:
            raise InvalidRequest(
                f"a question of {len(question):,} tokens leaves no room for its context; ask for longer prompts",
                "lengths",
            )
        if len(context) > room:
            context = context[: room // 2] + context[len(context) - (room - room // 2) :]
        if place == "after":
            return Prompt(tuple(context), tuple(question))
        return Prompt(tuple(context + question))

    def _parts(self, sample: Sample) -> tuple[list[int], list[int]]:
        before, after = self._texts(sample)
        is_bare = self._template is None or not sample.is_chat
        encode = self.tokenizer.encode
        return encode(before, add_special_tokens=is_bare), encode(after, add_special_tokens=False) if after else []

    def _texts(self, sample: Sample) -> tuple[str, str]:
        """The prompt up to its question, and the rest of it with the first words of the answer."""
        if self._template is None or not sample.is_chat:
            return sample.context, sample.question + sample.begin
        whole = self._template.render([{"role": "user", "content": sample.context + sample.question}])
        asked = sample.question.rstrip()  # a template may trim what it is given
        at = whole.rindex(asked) if asked else len(whole)
        return whole[:at], whole[at:] + sample.begin

    @cached_property
    def _template(self) -> ChatTemplate | None:
        try:
            return ChatTemplate.from_directory(self._folder)
        except InvalidRequest:
            return None
