"""The sandbox for chat templates, with the names and filters that published templates use.

Templates cannot access Python internals or modify their arguments, and cannot exceed the thread's RenderBudget.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes, pass_context, pass_eval_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_join
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ringkv.text import growth
from ringkv.text.render_budget import OBJECT, TemplateTooExpensive, current_budget

DEEPEST_INDENT = 16
OF_JINJA = ("_loop_vars", "_block_vars")  # arguments that jinja adds to every call
READING = (  # filters that write any value as text, or visit the texts of all its entries
    *("capitalize", "dictsort", "e", "escape", "forceescape", "format", "groupby", "list", "lower", "max", "min"),
    *("replace", "safe", "sort", "string", "striptags", "title", "trim", "unique", "upper", "urlencode", "wordcount"),
)
# Filters and globals for HTML or for tests of layouts, which chat templates do not use and whose results have no bound.
LEFT_OUT = ("batch", "slice", "sum", "center", "wordwrap", "xmlattr", "urlize", "pprint", "filesizeformat", "lipsum")


class _Generation(Extension):
    """{% generation %} marks the assistant's text for training; its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metered(NodeTransformer):
    """Adds calls of the environment's meters: in loops and macros, around lists and in place of `~`."""

    def visit_For(self, node: Any) -> nodes.Node:
        literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        tick = _call("tick", [nodes.Const(literal, lineno=node.lineno)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_For

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._measured(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._measured(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._measured(node, [pair.value for pair in node.items])

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)

    def _measured(self, node: nodes.Expr, items: list[nodes.Expr]) -> nodes.Node:
        self.generic_visit(node)
        is_constant = all(isinstance(item, nodes.Const) for item in items)
        return node if is_constant else _call("measured", [node], node.lineno)


def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name, lineno=line), arguments, [], None, None, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    growth: Mapping[str, Callable[[Any, Any], int]] = {
        "*": growth.of_product,
        "**": growth.of_power,
        "%": growth.of_format,
    }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Metered().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree  # type: ignore[no-any-return]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current_budget()
        budget.tick()
        if rule := self.growth.get(operator):
            budget.charge(rule(left, right))
        result = super().call_binop(context, operator, left, right)
        budget.charge_value(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.tick()
        args = tuple(map(_held, args))
        arguments = [*args, *(value for name, value in kwargs.items() if name not in OF_JINJA)]
        growth.check_arguments(arguments)
        budget.charge(growth.of_call(__obj, args))
        result = super().call(__context, __obj, *args, **kwargs)
        if __obj is dict or isinstance(result, Namespace):
            budget.charge_nested(arguments)
        budget.charge_value(result)
        return result

    def tick(self, literal: int) -> str:
        """Count a turn of a loop, whose body has so many characters of plain text."""
        current_budget().charge(literal)
        return ""

    def measured(self, value: Any) -> Any:
        """Return a new list, tuple or dictionary, which may refer to others many times over."""
        current_budget().charge_nested(value)
        return value

    def joined(self, *values: Any) -> str:
        """Return the result of the `~` operator."""
        for value in values:
            current_budget().charge_nested(value)
        return "".join(map(str, values))


def template_environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_written
    )
    environment.filters |= {"tojson": _to_json, "join": _join}
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
    for names in (environment.filters, environment.globals):
        for name in LEFT_OUT:
            names.pop(name, None)
    environment.filters |= {name: _metered(name, function) for name, function in environment.filters.items()}
    return environment


FILTERS: Mapping[str, Callable[..., int]] = {
    "replace": growth.of_replace,
    "indent": growth.of_indent,
    "format": growth.of_format,
    "list": lambda value: OBJECT * len(value) if isinstance(value, str) else 0,
}


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    rule = FILTERS.get(name)
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # of the arguments, the value

    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.tick()
        growth.check_arguments((*args[first + 1 :], *kwargs.values()))
        if rule:
            budget.charge(rule(*args[first:], **kwargs))
        if name in READING:
            args = tuple(map(_held, args))
            budget.charge_nested([*args[first:], *kwargs.values()])
        result = function(*args, **kwargs)
        budget.charge_value(result)
        return result

    return metered


def _held(value: Any) -> Any:
    """Return the entries of an iterator as a list, so that they can be measured."""
    return list(value) if isinstance(value, Iterator) and not isinstance(value, LoopContext) else value


@pass_context  # else jinja would call it while compiling
def _written(_: Context, value: Any) -> Any:
    """Charge what the template writes."""
    if not isinstance(value, str):
        current_budget().charge_nested(value)
    current_budget().charge_value(value)
    return value


@pass_eval_context
def _join(evaluation: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> Any:
    items = list(value)
    current_budget().charge_nested(items)
    current_budget().charge(len(items) * len(str(d)))
    return do_join(evaluation, items, d, attribute)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write plain JSON, which models were trained on; Jinja's own filter escapes <, > and & for HTML."""
    if isinstance(indent, int) and indent > DEEPEST_INDENT:
        raise TemplateTooExpensive(f"it indents JSON by {indent:,}; indent by at most {DEEPEST_INDENT}")
    current_budget().charge_nested(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: Any) -> NoReturn:
    current_budget().charge_nested(message)
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
