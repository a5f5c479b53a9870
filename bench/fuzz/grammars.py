"""Grammars: long chains, deep nesting, large counts, and mutations of ordinary ones."""

from functools import cache, partial
from itertools import pairwise
from random import Random
from typing import Any

from bench.fuzz.mutate import END, VOCAB, bytewise, mutated_json, mutated_text
from bench.fuzz.target import Target
from ringkv.text import grammar
from ringkv.text.guide_processes import GuideProcesses

STEPS = 30  # tokens to generate under a grammar that is accepted
SIZES = (1, 2, 10, 100, 1000, 3000, 10_000, 50_000)
COUNTS = (0, 1, 7, 1000, 10**6, 2**31, 10**12)
ORDINARY = (
    'start: greeting " " NAME\ngreeting: "hello" | "good" " " ("day" | "night")\nNAME: /[A-Z][a-z]+/\n%ignore /x/',
    'root ::= "a" | "b" root\n',
    'start: "(" start ")" | [ "x" ] | y{1,3}\ny: "q"+ "z"* "w"?',
    'start: a | "<" j ">"\na: "x"\nj: %json {"type": "object", "properties": {"a": {"type": "integer"}}}',
)
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{0,20}$", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150, "multipleOf": 2},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "minItems": 1, "maxItems": 5},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}, {"$ref": "#/$defs/d"}]},
    },
    "required": ["name"],
    "additionalProperties": {"type": "number"},
    "$defs": {"d": {"oneOf": [{"const": "x"}, {"allOf": [{"type": "boolean"}]}], "format": "date-time"}},
}


def _name(number: int) -> str:
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))


def _rules(random: Random) -> str:
    count, upper = random.choice(SIZES), random.random() < 0.5
    body = random.choice(("NEXT", '"x" NEXT "y"', "NEXT NEXT", 'NEXT | "z"', "(NEXT)*", "NEXT?"))
    names = [_name(number).upper() if upper else _name(number) for number in range(count + 1)]
    chain = [f"{name}: {body.replace('NEXT', following)}" for name, following in pairwise(names)]
    return grammar.lark_or_gbnf("\n".join([f"start: {names[0]}", *chain, f'{names[count]}: "a"']))


def _references(random: Random) -> str:
    count = random.choice(SIZES)
    wrap = random.choice(
        (
            lambda schema: schema,
            lambda schema: {"allOf": [schema, {"type": "object"}]},
            lambda schema: {"anyOf": [schema, {"type": "null"}]},
            lambda schema: {"type": "array", "items": schema},
            lambda schema: {"type": "object", "properties": {"p": schema, "q": schema}},
        )
    )
    defs = {_name(number): wrap({"$ref": f"#/$defs/{_name(number + 1)}"}) for number in range(count)}
    return grammar.json_schema({"$ref": f"#/$defs/{_name(0)}", "$defs": defs | {_name(count): {"type": "integer"}}})


def _nesting(random: Random) -> str:
    count = random.choice(SIZES)
    left, right = random.choice((("(", ")"), ("[", "]"), ("~(", ")"), ("%lark { start: ", "}")))
    inside = random.choice(("start: {}", "start: T\nT: {}")).format(left * count + '"a"' + right * count)
    return random.choice((grammar.lark_or_gbnf(inside), grammar.regex("(" * count + "a" + ")" * count)))


def _counts(random: Random) -> str:
    count, other = random.choice(COUNTS), random.choice(COUNTS)
    return random.choice(
        (
            partial(grammar.regex, f"(a{{{count}}}){{{other}}}"),
            partial(grammar.regex, f"(a|b)*a(a|b){{{count % 5000}}}"),
            partial(grammar.lark_or_gbnf, f'start: ("a" | "b" "c"){{{count},{other}}}'),
            partial(grammar.json_schema, {"type": "string", "minLength": count, "maxLength": other}),
            partial(grammar.json_schema, {"type": "array", "minItems": count, "items": {"type": "string"}}),
            partial(grammar.json_schema, {"type": "integer", "multipleOf": count, "minimum": -other, "maximum": other}),
        )
    )()


def _wide(random: Random) -> str:
    words = [_name(number) for number in range(random.choice(SIZES))]
    texts = {"type": "object", "properties": {word: {"type": "string"} for word in words}}
    rules = [f'{word}: "{word}"' for word in words]
    return random.choice(
        (
            partial(grammar.choice, words or ["a"]),
            partial(grammar.regex, "|".join(words)),
            partial(grammar.json_schema, {"enum": words or ["a"]}),
            partial(grammar.json_schema, texts),
            partial(grammar.lark_or_gbnf, "\n".join((f"start: {' | '.join(words)}", *rules))),
            partial(grammar.lark_or_gbnf, "start: " + '"a"? ' * len(words)),
        )
    )()


def _mutated(random: Random) -> str:
    return random.choice(
        (
            partial(grammar.lark_or_gbnf, mutated_text(random, random.choice(ORDINARY))),
            partial(grammar.json_schema, mutated_json(random, SCHEMA)),
            partial(grammar.regex, mutated_text(random, r"^(\d{3}-|[a-z&&[^x]]+?)*(?i:\p{L}|é)\b[^\]]{2,5}$")),
            partial(str, mutated_text(random, grammar.json_schema(SCHEMA))),  # as Python's SamplingParams takes it
        )
    )()


def _make(random: Random) -> Any:
    return random.choice((_rules, _references, _nesting, _counts, _wide, _mutated, _mutated)), random.randrange(2**32)


@cache
def _guides() -> GuideProcesses:
    """Return the guides that all cases share. Their processes have limits, as a server's have."""
    guides = GuideProcesses(bytewise, VOCAB)
    guides.check(grammar.regex("a"))
    return guides


def _run(case: Any) -> None:
    """Build the grammar, check it as the server does, and generate a few tokens as the engine does."""
    build, seed = case
    random, guides = Random(seed), _guides()
    source = build(random)
    guides.check(source)
    guide = guides(source)
    for left in range(STEPS, 0, -1):
        mask = int.from_bytes(guide.allowed(left), "little")
        allowed = [token for token in range(VOCAB) if mask >> token & 1]
        token = random.choice(allowed)
        if token == END:
            return
        guide.take(token)


GRAMMARS = Target(
    "grammars in Lark, GBNF, regex and JSON Schema",
    _make,
    _run,
    _guides,
    seconds=60.0,  # a check may take 5 s of processor time in a process of its own, on a busy machine
)
