"""Facts to hide in a long document, one at a time, and a question about each.

They are the first three that were tried, including one that a small cache missed.
"""

import re
from typing import NamedTuple


class Needle(NamedTuple):
    kind: str
    value: str

    @property
    def sentence(self) -> str:
        return f"The secret {self.kind} of this document is {self.value}."

    @property
    def question(self) -> str:
        return f"What is the secret {self.kind} of this document?"

    def hidden_in(self, document: str) -> str:
        """Return the document with the sentence inserted as a paragraph after two thirds of it."""
        paragraphs = document.split("\n\n")
        paragraphs.insert(2 * len(paragraphs) // 3, self.sentence)
        return "\n\n".join(paragraphs)

    def is_in(self, answer: str) -> bool:
        """Return whether the answer contains the value as a whole word."""
        return re.search(rf"\b{re.escape(self.value)}\b", answer, re.IGNORECASE) is not None


NEEDLES = (Needle("word", "pineapple"), Needle("number", "7294"), Needle("city", "Lisbon"))
