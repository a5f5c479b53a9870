import json

from llguidance import LLMatcher

from ringkv.text.answers.parts import Call
from ringkv.text.answers.reader import Reader
from ringkv.text.answers.tools import HERMES, LLAMA_3, described, format_of, with_arguments_read
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer

REFERS = {"type": "object", "properties": {"at": {"$ref": "#/$defs/day"}}, "required": ["at"]}
DAY = {"$defs": {"day": {"enum": ["Monday", "Tuesday"]}}}
TOOLS = {"book": REFERS | DAY, "cancel": {}}
ASKED = {"id": "1", "type": "function", "function": {"name": "book", "arguments": '{"at": "Monday"}'}}


def accepts(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    """Whether a guide lets the whole text through, byte by byte, and lets it end there."""
    guide = Guides(lambda: tokenizer, 258)(grammar)
    for token in [*text.encode(), 257]:
        mask = guide.allowed(1000)
        if not mask[token // 8] >> token % 8 & 1:
            return False
        guide.take(token)
    return True


def test_a_forced_call_fits_one_tools_schema_and_is_read_back(bytewise: Tokenizer) -> None:
    for form in (HERMES, LLAMA_3):
        grammar = form.grammar(TOOLS)
        assert LLMatcher.validate_grammar(grammar) == ""
        calls = {name: form.before.replace("NAME", f'"{name}"') for name in TOOLS}
        good = calls["book"] + '{"at": "Tuesday"}' + form.after
        assert accepts(bytewise, grammar, good)
        assert accepts(bytewise, grammar, calls["cancel"] + '{"why": [1, null]}' + form.after)
        assert not accepts(bytewise, grammar, calls["book"] + '{"at": "Sunday"}' + form.after)
        assert not accepts(bytewise, grammar, calls["cancel"].replace("cancel", "delete") + "{}" + form.after)
        reader = Reader([form.span(TOOLS)])
        assert [*reader.push(good), *reader.finish()] == [Call("book", '{"at": "Tuesday"}')]


def test_the_format_is_the_one_that_the_template_teaches() -> None:
    assert format_of("... return <tool_call> ...") is HERMES
    assert format_of('{"name": ..., "parameters": ...}') is LLAMA_3
    assert format_of("{{ messages }}") is HERMES


def test_a_template_that_knows_no_tools_is_told_in_plain_roles() -> None:
    tool = {"type": "function", "function": {"name": "book", "parameters": REFERS}}
    talk = [
        {"role": "system", "content": "Be short."},
        {"role": "assistant", "content": None, "tool_calls": [ASKED]},
        {"role": "tool", "content": "booked", "tool_call_id": "1"},
    ]
    system, assistant, answer = described(talk, [tool])
    assert system["content"].startswith("Be short.\n\n")
    assert json.dumps(tool) in system["content"]
    assert assistant == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "book", "arguments": {"at": "Monday"}}\n</tool_call>',
    }
    assert answer == {"role": "user", "content": "<tool_response>\nbooked\n</tool_response>"}
    assert described(talk[:1], []) == talk[:1]
    assert described([], [tool])[0]["role"] == "system"


def test_arguments_reach_a_template_as_an_object_where_they_are_one() -> None:
    read = with_arguments_read({"role": "assistant", "tool_calls": [ASKED]})
    assert read["tool_calls"][0]["function"] == {"name": "book", "arguments": {"at": "Monday"}}
    broken = {**ASKED, "function": {"name": "book", "arguments": "{at"}}
    assert with_arguments_read({"tool_calls": [broken]})["tool_calls"][0]["function"]["arguments"] == "{at"
