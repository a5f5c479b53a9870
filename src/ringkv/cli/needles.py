"""NEEDLES: facts to hide in a long document, one at a time, and the questions that find out whether a cache kept them.

They are fixed: the first three that were tried, the one that a small cache missed included.
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
        """The document with the sentence as a paragraph of its own, after two thirds."""
        paragraphs = document.split("\n\n")
        paragraphs.insert(2 * len(paragraphs) // 3, self.sentence)
        return "\n\n".join(paragraphs)

    def is_in(self, answer: str) -> bool:
        """Whether the answer has the value, as a word of its own."""
        return re.search(rf"\b{re.escape(self.value)}\b", answer, re.IGNORECASE) is not None


NEEDLES = (Needle("word", "pineapple"), Needle("number", "7294"), Needle("city", "Lisbon"))
