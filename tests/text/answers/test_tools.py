import json

from llguidance import LLMatcher

from ringkv.text.answers.reader import Reader
from ringkv.text.answers.spans import ToolCall
from ringkv.text.answers.tools import HERMES, LLAMA_3, format_of, with_parsed_arguments, with_tools_described
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer

SCHEMA_WITH_REF = {"type": "object", "properties": {"at": {"$ref": "#/$defs/day"}}, "required": ["at"]}
DAY = {"$defs": {"day": {"enum": ["Monday", "Tuesday"]}}}
TOOLS = {"book": SCHEMA_WITH_REF | DAY, "cancel": {}}
CALL = {"id": "1", "type": "function", "function": {"name": "book", "arguments": '{"at": "Monday"}'}}


def accepts(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    """Return whether a guide allows the whole text, byte by byte, and an end after it."""
    guide = Guides(lambda: tokenizer, 258)(grammar)
    for token in [*text.encode(), 257]:
        mask = guide.allowed(1000)
        if not mask[token // 8] >> token % 8 & 1:
            return False
        guide.take(token)
    return True


def test_a_forced_call_fits_one_tools_schema_and_parses(bytewise: Tokenizer) -> None:
    for form in (HERMES, LLAMA_3):
        grammar = form.grammar(TOOLS)
        assert LLMatcher.validate_grammar(grammar) == ""
        calls = {name: form.before.replace("NAME", f'"{name}"') for name in TOOLS}
        good = calls["book"] + '{"at": "Tuesday"}' + form.after
        assert accepts(bytewise, grammar, good)
        assert accepts(bytewise, grammar, calls["cancel"] + "{}" + form.after)
        assert not accepts(bytewise, grammar, calls["cancel"] + '{"why": [1, null]}' + form.after)
        assert not accepts(bytewise, grammar, calls["book"] + '{"at": "Sunday"}' + form.after)
        assert not accepts(bytewise, grammar, calls["cancel"].replace("cancel", "delete") + "{}" + form.after)
        reader = Reader([form.span(TOOLS)])
        assert [*reader.push(good), *reader.finish()] == [ToolCall("book", '{"at": "Tuesday"}')]


def test_the_format_is_the_one_that_the_template_describes() -> None:
    assert format_of("... return <tool_call> ...") is HERMES
    assert format_of('{"name": ..., "parameters": ...}') is LLAMA_3
    assert format_of("{{ messages }}") is HERMES
    for other in ("{{ tools }}", "<tool_call><function=f>", "[TOOL_CALLS]", "<|channel|>", '{"parameters"}<arg_key>'):
        assert format_of(other) is None


def test_tools_are_described_in_plain_roles_for_a_template_without_tools() -> None:
    tool = {"type": "function", "function": {"name": "book", "parameters": SCHEMA_WITH_REF}}
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "booked", "tool_call_id": "1"},
    ]
    system, assistant, answer = with_tools_described(messages, [tool])
    assert system["content"].startswith("Be short.\n\n")
    assert json.dumps(tool) in system["content"]
    assert assistant == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "book", "arguments": {"at": "Monday"}}\n</tool_call>',
    }
    assert answer == {"role": "user", "content": "<tool_response>\nbooked\n</tool_response>"}
    assert with_tools_described(messages[:1], []) == messages[:1]
    assert with_tools_described([], [tool])[0]["role"] == "system"


def test_arguments_are_passed_to_a_template_as_an_object_if_they_parse() -> None:
    parsed = with_parsed_arguments({"role": "assistant", "tool_calls": [CALL]})
    assert parsed["tool_calls"][0]["function"] == {"name": "book", "arguments": {"at": "Monday"}}
    broken = {**CALL, "function": {"name": "book", "arguments": "{at"}}
    assert with_parsed_arguments({"tool_calls": [broken]})["tool_calls"][0]["function"]["arguments"] == "{at"
