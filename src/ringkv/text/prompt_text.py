"""PromptText: a prompt before it is tokenised, with the places that no token may cover."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class PromptText:
    """breaks: ascending offsets in `text`, each inside a special token's text that a user wrote."""

    text: str
    breaks: tuple[int, ...] = ()

    def pieces(self) -> list[str]:
        """Return the text, divided at the breaks."""
        return [self.text[start:end] for start, end in pairwise((0, *self.breaks, len(self.text)))]

    def upto(self, end: int) -> "PromptText":
        """Return the first `end` characters."""
        return PromptText(self.text[:end], tuple(place for place in self.breaks if place < end))
