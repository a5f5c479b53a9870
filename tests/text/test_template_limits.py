"""Templates that loop, double and format without end are stopped."""

import re
import time
import tracemalloc
from typing import Any

import pytest

from ringkv.base.errors import BadWeights, InvalidRequest
from ringkv.text import render_budget
from ringkv.text.chat_template import LONGEST_SOURCE, ChatTemplate

MESSAGES = [{"role": "user", "content": "ab, cd"}]
NS = "{% set ns = namespace(x='ab') %}"
DOUBLE = "{% for i in range(100) %}BODY{% endfor %}"


@pytest.fixture(autouse=True)
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_budget.RenderBudget.__init__, "__defaults__", (0.3, 4 << 20))


def stopped(source: str, **options: Any) -> str:
    started = time.monotonic()
    with pytest.raises(InvalidRequest) as raised:
        ChatTemplate({"default": source}, {}).render(MESSAGES, **options)
    assert time.monotonic() - started < 5
    return str(raised.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% continue %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for a in [[1]] recursive %}{{ loop([a, a]) if loop.depth < 60 }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(source: str) -> None:
    found = stopped(source)  # once, since a busy machine reaches the other limit first
    assert "over 0.3 s" in found or "characters" in found


@pytest.mark.parametrize(
    "source",
    [
        NS + DOUBLE.replace("BODY", "{% set ns.x = ns.x + ns.x %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = ns.x ~ ns.x %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = [ns.x, ns.x] %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = dict(a=ns.x, b=ns.x) %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = ns.x.replace('a', ns.x) %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = ns.x | replace('a', ns.x) %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = '{0}{0}'.format(ns.x) %}"),
        NS + DOUBLE.replace("BODY", "{% set ns.x = ns.x.join([ns.x] * 9) %}"),
        "{{ 'x' * 10**10 }}",
        "{{ 10**9 * 'x' }}",
        "{{ [1] * 10**10 }}",
        "{{ ('x' * 999999).replace('x', 'y' * 999999) }}",
        "{{ (['x' * 9999] * 99999) | join('y') }}",
        "{% for i in range(99999) %}" + "text" * 5000 + "{% endfor %}",
        "{% set x %}{% for i in range(99999) %}" + "text" * 5000 + "{% endfor %}{% endset %}",
    ],
)
def test_a_template_that_makes_too_much_text_is_stopped(source: str) -> None:
    assert "over 4,194,304 characters" in stopped(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 9**(9**9) }}", "bits"),
        ("{{ 'x'.ljust(10**10) }}", "integer over 1,000,000"),
        ("{{ (5).to_bytes(10**10, 'big') }}", "integer over 1,000,000"),
        ("{{ '%9999999999d' % 1 }}", "width"),
        ("{{ '%*d' % (10**10, 1) }}", "width"),
        ("{{ '{:>9999999999}'.format(1) }}", "width"),
        ("{{ '{:>{}}'.format(1, 10**5) }}", "width"),
        ("{{ messages | tojson(indent=10**6) }}", "indents"),
        ("{{ range(10**9) | list }}", "range|integer"),
    ],
)
def test_one_operation_that_would_take_all_memory_is_refused(source: str, reason: str) -> None:
    assert re.search(reason, stopped(source))


WRITTEN = (
    *("'%s' % ns.x", "'{}'.format(ns.x)", "ns", "ns.x | upper", "ns.x | sort | first", "'a' | replace('b', ns.x)"),
    *("''.join(ns.x | select)", "raise_exception(ns.x)"),
)


@pytest.mark.parametrize("written", WRITTEN)
def test_a_list_that_names_a_long_text_many_times_is_not_written(written: str) -> None:
    source = "{% set ns = namespace(x=['a' * 99999]) %}{% for i in range(9) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    tracemalloc.start()
    try:
        assert "characters" in stopped(source + "{{ (" + written + ") ~ '' }}")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_the_variables_of_a_request_cannot_do_it_either() -> None:
    source = "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}{{ 'x' * n }}"
    assert "0.3 s" in stopped(source, variables={"n": 99_999})


def test_a_long_conversation_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    source = (
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content | trim) + '<|im_end|>' + '\n' }}"
        "{%- set last = messages[-1].content ~ '' %}{%- endfor %}"
    )
    many = [{"role": "user", "content": "word " * 500}] * 4000
    assert len(ChatTemplate({"default": source}, {}).render(many)) == 4000 * (
        len("<|im_start|>user\n<|im_end|>\n") + 2499
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "does not (compile|parse)"),
        ("{% if 1 %}" * 500 + "{% endif %}" * 500, "does not compile"),
        ("x" * (LONGEST_SOURCE + 1), "500,001 characters"),
        ("{{ messages | urlize }}", "does not parse"),
    ],
)
def test_a_template_that_does_not_compile_is_refused(source: str, reason: str) -> None:
    with pytest.raises(BadWeights, match=reason):
        ChatTemplate({"default": source}, {})


def test_a_variable_cannot_replace_what_the_caller_sets() -> None:
    chat = ChatTemplate({"default": "{{ add_generation_prompt }}{{ messages | length }}"}, {})
    assert chat.render(MESSAGES, variables={"add_generation_prompt": False, "messages": []}) == "True1"
