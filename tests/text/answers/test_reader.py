"""The parts of an answer do not depend on how its text is split into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.text.answers.reader import MOST_INVALID, Reader
from ringkv.text.answers.spans import (
    AnswerPart,
    Content,
    MarkedSpan,
    Reasoning,
    ReasoningEnded,
    ToolCall,
    bare_calls,
    ends_in_string,
    tagged_calls,
    thinking,
)

NAMES = ("add", "find")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "ü"}}\n</tool_call>'


def read(reader: Reader, *pieces: str) -> list[AnswerPart]:
    """Return the parts, with neighbours of one kind joined."""
    joined: list[AnswerPart] = []
    for part in [*(part for piece in pieces for part in reader.push(piece)), *reader.finish()]:
        last = joined[-1] if joined else None
        if isinstance(part, Content | Reasoning) and type(last) is type(part):
            joined[-1] = type(part)(last.text + part.text)
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("plain", [Content("plain")]),
        ("", []),
        ("a < b and <tool", [Content("a < b and <tool")]),
        (CALL, [ToolCall("add", '{"a": 1, "b": "ü"}')]),
        (
            f"Let me see.\n{CALL}\n{CALL}\n",
            [Content("Let me see.\n"), *[ToolCall("add", '{"a": 1, "b": "ü"}')] * 2],
        ),
        ('<tool_call>{"name": "find", "arguments": "{}"}', [ToolCall("find", "{}")]),  # the end mark is missing
        ('<tool_call>{"name": "other"}</tool_call>', [Content('<tool_call>{"name": "other"}</tool_call>')]),
        ("<tool_call>{broken</tool_call>!", [Content("<tool_call>{broken</tool_call>!")]),
        ('<tool_call>{"name": "add", "arguments": null}</tool_call>', [ToolCall("add", "{}")]),
        *(
            (f"<tool_call>{wrong}</tool_call>", [Content(f"<tool_call>{wrong}</tool_call>")])
            for wrong in (
                '{"name": {"first": "add"}}',
                '{"name": "add", "arguments": 5}',
                '{"name": "add", "arguments": "none"}',
                '{"name": "add", "arguments": {"a": NaN}}',
                "[" * 5000,
            )
        ),
        ("<think>\nhm, <b>\n</think>\n\nYes.", [Reasoning("hm, <b>\n"), Content("Yes.")]),
        ("<think>\n\n</think>\n\nYes.", [Content("Yes.")]),
        ("<think>for ever", [Reasoning("for ever")]),
        ("The <think> tag", [Content("The <think> tag")]),
        ("<think>so</think>The <think> tag", [Reasoning("so"), Content("The <think> tag")]),
        (f"<think>so</think>{CALL}", [Reasoning("so"), ToolCall("add", '{"a": 1, "b": "ü"}')]),
        ("Two and two.</think>\n\nFour.", [Content("Two and two."), ReasoningEnded(), Content("Four.")]),
        ("<think>so</think>The </think> tag", [Reasoning("so"), Content("The </think> tag")]),
        *(
            (
                f'{before}<tool_call>{{"name": "add", "arguments": {{"a": "{argument}"}}}}</tool_call>!',
                [*shown, Content("!")],
            )
            for before in ("", "Its mark is <tool_call>. So: ", "<tool_call>{<tool_call>")
            for argument, value in (
                ("the </tool_call> here", "the </tool_call> here"),
                ("<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>"),
                ("if a:\n\tb()", "if a:\\n\\tb()"),
                (r"\\\"</tool_call>", r"\\\"</tool_call>"),
            )
            for shown in [[*([Content(before)] if before else []), ToolCall("add", f'{{"a": "{value}"}}')]]
        ),
        ('<tool_call>{"name": "add</tool_call> and on', [Content('<tool_call>{"name": "add</tool_call> and on')]),
    ],
)
def test_marked_spans_become_parts(text: str, parts: list[AnswerPart]) -> None:
    spans = [thinking(), tagged_calls(NAMES)]
    assert read(Reader(spans), text) == parts
    assert read(Reader(spans), *text) == parts


def test_half_of_a_surrogate_pair_stays_an_escape() -> None:
    (call,) = read(
        Reader([tagged_calls(NAMES)]), r'<tool_call>{"name": "add", "arguments": {"a": "\ud83d"}}</tool_call>'
    )
    assert call == ToolCall("add", r'{"a": "\ud83d"}')


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"name": "add", "parameters": {"a": 1}}', [ToolCall("add", '{"a": 1}')]),
        (' {"name": "add"}; {"name": "find", "parameters": {}}', [ToolCall("add", "{}"), ToolCall("find", "{}")]),
        ('{"colour": "red"}', [Content('{"colour": "red"}')]),
        ('So: {"name": "add"}', [Content('So: {"name": "add"}')]),
    ],
)
def test_bare_calls_are_found_only_at_the_start_of_an_answer(text: str, parts: list[AnswerPart]) -> None:
    for pieces in ([text], list(text)):
        found = read(Reader([bare_calls(NAMES)]), *pieces)
        assert [part for part in found if part != Content(" ")] == parts


def test_a_thought_that_the_prompt_opened_is_reasoning() -> None:
    assert read(Reader([thinking()], inside=thinking()), "\nI ", "guess</thi", "nk>\nNo.") == [
        Reasoning("I guess"),
        Content("No."),
    ]


def test_without_spans_every_piece_is_returned_at_once() -> None:
    reader = Reader()
    assert [reader.push(piece) for piece in ("<thi", "", " {")] == [[Content("<thi")], [], [Content(" {")]]


@given(st.lists(st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "add"}', "a", " "])))
def test_splitting_the_text_does_not_change_the_parts(words: list[str]) -> None:
    text, spans = "".join(words), [thinking(), tagged_calls(NAMES)]
    assert read(Reader(spans), *text) == read(Reader(spans), text) == read(Reader(spans), *words)


def test_each_part_of_a_string_is_searched_once_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[int]()

    def counted(text: str) -> bool:
        searched.append(len(text))
        return ends_in_string(text)

    monkeypatch.setattr("ringkv.text.answers.reader.ends_in_string", counted)
    said = "close it: </tool_call> " * 300
    text = f'<tool_call>{{"name": "add", "arguments": {{"a": "{said}"}}}}</tool_call>'
    assert read(Reader([tagged_calls(NAMES)]), *text) == [ToolCall("add", f'{{"a": "{said}"}}')]
    assert sum(searched) < 2 * len(text)


@pytest.mark.parametrize("end", ["", "</a>"])
def test_an_answer_of_many_invalid_calls_is_text_that_is_read_few_times(end: str) -> None:
    parsed = list[str]()

    def parse(text: str) -> None:
        parsed.append(text)

    span = MarkedSpan("<a>", "</a>", parse)
    text = "<a> x " * (3 * MOST_INVALID) + end
    assert read(Reader([span]), *text) == [Content(text)]
    assert len(parsed) == MOST_INVALID
