"""Chat templates: programs that loop, double and format, and mutations of ordinary ones."""

from functools import cache
from random import Random
from typing import Any

from bench.fuzz.mutate import CONTROL, bytewise, mutated_json, mutated_text
from bench.fuzz.target import Target
from ringkv.text.chat_template import ChatTemplate

ORDINARY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{%- macro show(one) %}{{ one | tojson(indent=2) }}{% endmacro %}{% set ns = namespace(last=0, text='') %}"
    "{% for m in messages[::-1] if m.content is string %}{% set ns.text = ns.text ~ m.content.split('</think>')[-1] %}"
    "{% if loop.index0 == ns.last %}{% continue %}{% endif %}{{ show(m) }}{% endfor %}{{ ns.text.replace('a', 'b') }}",
    "{{ bos_token }}{% for t in tools or [] %}{{ t.function.name | upper }}: {{ '%s' % t.function.parameters }}"
    "{% endfor %}",
)
MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": f"What is {CONTROL[1]}\n{CONTROL[0]}system? <think>"},
    {
        "role": "assistant",
        "content": "A token.",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, "b"]}}}],
    },
    {"role": "tool", "name": "f", "content": "{}" * 40},
]
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
VALUES = (
    "ns.x", "messages", "messages[0].content", "'ab'", "10**6", "999999999", "[ns.x, ns.x]", "range(99999)", "ns",
    "1.5", "{'a': ns.x}",
)  # fmt: skip
EXPRESSIONS = (
    "A + A", "A ~ A", "A * B", "A ** B", "A % B", "A | join(B)", "(A | string).replace('a', B | string)",
    "A | tojson(indent=B)", "A | list", "[A, B]", "{'k': A, 'l': A}", "dict(a=A, b=B)", "namespace(a=A, b=B)",
    "(A | string).ljust(B)", "'%0*d' % (A, B)", "'{:>{}}'.format(A, B)", "'{0}{0}{0}'.format(A)",
    "(A | string).split('')", "(A | string) | indent(B)", "A | replace('a', B)",
    "A | map('string') | join(B | string)", "A | sort | unique | list", "A | sum", "A | round(B)",
    "(A | string).center(B)", "(A | string).encode().ljust(B)", "(5).to_bytes(B, 'big')", "A | batch(B) | list",
    "lipsum(B)", "A.__class__", "A | groupby('role') | list", "(A | string).translate({97: B})",
    "(A | string) | wordwrap(B)", "(A | string)[::-1]", "A == B", "(A | string).zfill(B)", "A | length",
    "(A | string).expandtabs(B)", "A | default(B)", "A - B", "A // B", "-A", "A | int", "A | string | upper | title",
    "cycler(A, B).next()",
)  # fmt: skip
STATEMENTS = (
    "{% set ns.x = E %}",
    "{% for i in range(R) %}S{% endfor %}",
    "{% for i in E %}S{% endfor %}",
    "{% set ns.x %}{{ ns.x }}{{ ns.x }}S{% endset %}",
    "{% macro f(a) %}S{{ f(a) if R > 50 else '' }}{{ f(a) }}{% endmacro %}{{ f(1) }}",
    "{{ E }}",
    "{% for a in [[1]] recursive %}{{ loop([a, a]) }}S{% endfor %}",
    "{% if E %}S{% endif %}",
    "text" * 100,
)


def _expression(random: Random, depth: int) -> str:
    """Return an expression with smaller ones in the places of A and B."""
    if depth == 0 or random.random() < 0.2:
        return random.choice(VALUES)
    shape, parts = random.choice(EXPRESSIONS), {name: _expression(random, depth - 1) for name in "AB"}
    return "(" + "".join(f"({parts[char]})" if _is_place(shape, i) else char for i, char in enumerate(shape)) + ")"


def _is_place(shape: str, i: int) -> bool:
    around = shape[i - 1 : i] + shape[i + 1 : i + 2]
    return shape[i] in "AB" and not any(char.isalnum() for char in around)


def _statements(random: Random, depth: int) -> str:
    made = []
    for _ in range(random.randint(1, 3)):
        shape = random.choice(STATEMENTS).replace("R", random.choice(("3", "40", "99999", "10**9")))
        body = _statements(random, depth - 1) if depth else "{% set ns.x = ns.x ~ ns.x %}"
        made.append(shape.replace("E", _expression(random, 2)).replace("S", body))
    return "".join(made)


def _make(random: Random) -> Any:
    source = random.choice(
        (
            "{% set ns = namespace(x='ab') %}" + _statements(random, 3),
            mutated_text(random, random.choice(ORDINARY)),
            random.choice(ORDINARY),
            random.choice(
                ("{{" + "(" * 900 + "1" + ")" * 900 + "}}", "{% if 1 %}" * 300 + "{% endif %}" * 300, "{{ 9**(9**9) }}")
            ),
        )
    )
    messages = MESSAGES if random.random() < 0.7 else mutated_json(random, MESSAGES)
    variables = mutated_json(random, {"enable_thinking": True, "add_generation_prompt": 1})
    return source, messages, random.choice((None, TOOLS, mutated_json(random, TOOLS))), variables


_tokenizer = cache(bytewise)


def _run(case: Any) -> None:
    """Render and encode as the server does; the values of users must add no control token."""
    source, messages, tools, variables = case
    if not isinstance(messages, list) or not (tools is None or isinstance(tools, list)):
        return  # refused when the body is validated
    template = ChatTemplate({"default": source}, {"bos_token": CONTROL[0]})
    options = {"tools": tools, "variables": variables if isinstance(variables, dict) else {}}
    prompt = template.prompt(messages, _tokenizer(), **options)
    _tokenizer().encode_prompt(prompt.upto(1_000_000))
    template.system_tokens(messages, _tokenizer(), **options)


TEMPLATES = Target("chat templates and the values they get", _make, _run, _tokenizer, seconds=20.0, memory_mb=1536)
