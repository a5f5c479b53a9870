from typing import cast

from bench.traffic.loads import Texts
from bench.traffic.traces import Lengths
from ringkv.text.tokenizer import Tokenizer


class Characters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


TEXTS = Texts(cast(Tokenizer, Characters()))


def test_a_text_has_its_length_and_depends_on_its_name_only() -> None:
    asked = [TEXTS.ask("s", name, Lengths(1.5, 300, 20), part=512) for name in ("a", "b", "a")]
    assert [(one.arrival, one.tokens, one.output) for one in asked] == [(1.5, 300, 20)] * 3
    assert asked[0] == asked[2] != asked[1]


def test_requests_share_the_text_of_their_leading_parts_and_nothing_after_them() -> None:
    first = TEXTS.ask("s", "a", Lengths(0.0, 250, 20, (7, 8, 9)), part=100).prompt
    second = TEXTS.ask("s", "b", Lengths(0.0, 300, 20, (7, 8, 10)), part=100).prompt
    assert (len(first), len(second)) == (250, 300)
    assert first[:200] == second[:200]
    assert first[200:] != second[200:250]


def test_requests_of_another_scope_share_nothing() -> None:
    wanted = Lengths(0.0, 250, 20, (7, 8, 9))
    one, other = (TEXTS.ask(scope, "a", wanted, part=100).prompt for scope in ("s", "t"))
    assert one[:20] != other[:20]
