"""structured: do documents fit the requested schema, and what does a grammar cost the other requests of a step?

    python -m bench.structured                       300 random schemas on SmolLM2 at temperature 1; a step's time
    python -m bench.structured --schemas 50

A schema is refused with the name of the keyword that is not enforced, or its document is checked with the jsonschema
package. Documents that were closed at the token limit are checked too.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import jsonschema
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bench.results import keep, table
from ringkv import LLM, SamplingParams
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import Failed, Finished
from ringkv.base.request import Request
from ringkv.engine.build import build
from ringkv.scheduler.loop import Loop
from ringkv.text.grammar import json_schema
from ringkv.text.guide import Guides

TOKENS = 1000
SLOTS = 8
STEPS, ROUNDS = 40, 5
# Keywords that a grammar cannot enforce, or only in some cases.
HARD: Sequence[Mapping[str, Any]] = (
    {"uniqueItems": True},
    {"contains": {"type": "integer"}},
    {"not": {"type": "string"}},
    {"propertyNames": {"maxLength": 3}},
    {"minProperties": 1},
    {"dependentRequired": {"a": ["b"]}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
)
NAMES = st.sampled_from(["a", "b", "name", "größe", "x y", "$id2"])


def bounds(low: str, high: str, most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Generate a lower bound, an upper bound, both or neither, in order."""
    ordered = st.tuples(st.integers(0, most), st.integers(0, most)).map(sorted)
    return st.tuples(ordered, st.booleans(), st.booleans()).map(
        lambda one: ({low: one[0][0]} if one[1] else {}) | ({high: one[0][1]} if one[2] else {})
    )


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    """Generate schemas of single values. Strings are bounded, as a model may continue one without end."""
    values = st.lists(st.sampled_from(["red", "é", "", 0, -3, 1.5, True, None]), min_size=1, max_size=4)
    numbers = bounds("minimum", "maximum", 2000) | bounds("exclusiveMinimum", "maximum", 9).filter(_is_satisfiable)
    return st.one_of(
        bounds("minLength", "maxLength", 12).map(lambda more: {"type": "string", "maxLength": 12, **more}),
        st.sampled_from(["^[a-z]{2,5}$", "^(yes|no)$", r"^\d{3}-\d{4}$"]).map(
            lambda p: {"type": "string", "pattern": p}
        ),
        st.sampled_from(["date", "time", "date-time", "uuid", "ipv4", "email"]).map(
            lambda f: {"type": "string", "format": f}
        ),
        numbers.map(lambda more: {"type": "integer", **more}),
        numbers.map(lambda more: {"type": "number", **more}),
        st.integers(2, 9).map(lambda n: {"type": "integer", "multipleOf": n, "minimum": 0, "maximum": 100}),
        st.sampled_from(["boolean", "null"]).map(lambda kind: {"type": kind}),
        values.map(lambda some: {"enum": some}),
        values.map(lambda some: {"const": some[0]}),
        st.just({"$ref": "#/$defs/shared"}),
    )


def _is_satisfiable(more: Mapping[str, int]) -> bool:
    return more.get("maximum", 10**6) > more.get("exclusiveMinimum", -1)


def grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    fields = st.dictionaries(NAMES, inner, max_size=4)
    return st.one_of(
        st.tuples(inner, bounds("minItems", "maxItems", 4)).map(
            lambda one: {"type": "array", "items": one[0], "maxItems": 4, **one[1]}
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda some: {"type": "array", "prefixItems": some, "items": False, "minItems": len(some)}
        ),
        st.tuples(fields, st.booleans()).map(
            lambda one: {
                "type": "object",
                "properties": one[0],
                "required": sorted(one[0])[: len(one[0]) if one[1] else len(one[0]) // 2],
                "additionalProperties": False,
            }
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
    )


def schemas(count: int) -> list[dict[str, Any]]:
    """Return `count` different schemas, the same on every call. Every eighth has a keyword of `HARD`, in order."""
    made: list[dict[str, Any]] = []

    @settings(
        max_examples=4 * count,  # many are duplicates
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.recursive(leaves(), grown, max_leaves=8))
    def generate(schema: dict[str, Any]) -> None:
        hard = HARD[len(made) // 8 % len(HARD)] if len(made) % 8 == 7 else {}
        one = {**schema, **hard, "$defs": {"shared": {"enum": ["one", 2]}}}
        if one not in made:
            made.append(one)

    generate()
    return made[:count]


def outcomes(llm: LLM, schemas: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each schema's outcome, "fits", "shortened", "refused" or "WRONG", and the document or error."""
    for number, schema in enumerate(schemas):
        outcome, detail = _outcome(llm, schema)
        print(f"{number + 1} of {len(schemas)}: {outcome} {detail[:100]}", flush=True)
        yield outcome, detail


def _outcome(llm: LLM, schema: Mapping[str, Any]) -> tuple[str, str]:
    sampling = SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=0, grammar=json_schema(schema))
    try:
        result = llm.generate("Write any JSON document.\n", sampling)
    except InvalidRequest as error:
        return "refused", str(error)
    found, detail = _checked(schema, result.text)
    return ("shortened" if found == "fits" and result.finish_reason == "length" else found), detail


def _checked(schema: Mapping[str, Any], text: str) -> tuple[str, str]:
    try:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return "WRONG", f"{text[:200]} for {json.dumps(schema)[:400]}: {error.__class__.__name__} {error!s:.100}"
    return "fits", text


def step_seconds(loop: Loop, requests: Sequence[Request]) -> list[float]:
    """Return the times of steps with all of these requests running, then cancel them."""
    events = [event for request in requests for event in loop.submit(request)]
    while loop.stats().running < len(requests):
        events += loop.step()
        assert not any(isinstance(event, Failed | Finished) for event in events), "a request ended before all ran"
    times = []
    for _ in range(STEPS):
        started = time.perf_counter()
        loop.step()
        loop.step()  # one call samples, the other runs the forward pass
        times.append(time.perf_counter() - started)
    for request in requests:
        loop.cancel(request.id)
    while not loop.idle:
        loop.step()
    return times


def cost(llm: LLM) -> tuple[float, float]:
    """Return a step's median seconds for eight greedy requests, without and with a grammar for one, alternating."""
    loop = Loop(build(llm.config), guide=Guides(lambda: llm.tokenizer, llm.limits.vocab))
    tokens = tuple(llm.tokenizer.encode("The sea is wide. " * 60))
    lists = json_schema({"type": "array", "items": {"type": "string", "minLength": 5}, "minItems": 5000})

    def requests(grammar: str) -> list[Request]:
        free = SamplingParams(max_tokens=4 * STEPS, temperature=0.0)
        guided = SamplingParams(max_tokens=4 * STEPS, temperature=0.0, grammar=grammar)
        return [Request(f"r{n}", tokens, guided if n == 0 else free) for n in range(SLOTS)]

    step_seconds(loop, requests(lists))
    without, with_ = [], []
    for _ in range(ROUNDS):
        without += step_seconds(loop, requests(""))
        with_ += step_seconds(loop, requests(lists))
    return median(without), median(with_)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--schemas", type=int, default=300)
    args = parser.parse_args()
    llm = LLM(args.model, slots=SLOTS, kv_budget=2048, prompt_tokens=2048)
    without, with_ = cost(llm)
    results = list(outcomes(llm, schemas(args.schemas)))
    counts = {kind: sum(one == kind for one, _ in results) for kind in ("fits", "shortened", "refused", "WRONG")}
    figures = [
        {"kind": "documents", "schemas": len(results), **counts, "fitting": fitting(counts)},
        {"kind": "step", "slots": SLOTS, "without_s": without, "with_s": with_, "more": with_ / without - 1},
    ]
    workload = {"model": args.model, "schemas": args.schemas, "temperature": 1, "tokens": TOKENS, "slots": SLOTS}
    keep("structured", workload, figures, shown(counts, without, with_))


def fitting(counts: Mapping[str, int]) -> float:
    """Return the share of documents that fit their schema, among schemas that were not refused."""
    fit = counts["fits"] + counts["shortened"]
    return fit / (fit + counts["WRONG"])


def shown(counts: Mapping[str, int], without: float, with_: float) -> str:
    rows = [
        ("documents that fit their schema", str(counts["fits"])),
        ("schemas refused, with the keyword that is not enforced", str(counts["refused"])),
        (f"documents that fit and were closed at {TOKENS:,} tokens", str(counts["shortened"])),
        ("documents that do not fit", str(counts["WRONG"])),
        (f"a step, {SLOTS} greedy requests", f"{without * 1e3:.1f} ms"),
        ("a step, one of them with a grammar", f"{with_ * 1e3:.1f} ms"),
        ("more", f"{with_ / without - 1:.0%}"),
    ]
    return table(("", ""), rows)


if __name__ == "__main__":
    main()
