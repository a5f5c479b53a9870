"""The table of settings, and everything made from it."""

import re
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
import typer

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SELECTORS, TOVA, KeyDiff, SnapKV, parameters
from ringkv.cli.application import app
from ringkv.cli.options import ConversationOptions
from ringkv.plan.choose_kv import DEFAULT_BUDGET
from ringkv.plan.kv_settings import AT_START, PER_REQUEST, changed
from ringkv.plan.options import Options
from ringkv.plan.units import parse_share
from ringkv.server.api.responses import ResponsesBody
from ringkv.server.run.schemas import ChatBody, CompletionBody
from tests.refusals import refusal

OF_PAGES = {"kv_page", "kv_tier"}
START_ALONE = {"kv_compression", "kv_format", "kv_format_skip", "kv_profile", *OF_PAGES}
REQUEST_ALONE = {"kv_protect"}
OBSERVES = {"kv_trace"}  # of HTTP; it changes nothing of the cache


def ours(names: Any) -> set[str]:
    return {name for name in names if name.startswith("kv_")}


def flags(command: str) -> set[str]:
    """The kv_* parameters of a command, each with a flag of its name."""
    made = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    options = {one.name: one.opts for one in made.params if one.name.startswith("kv_")}
    assert all("--" + name.replace("_", "-") in opts for name, opts in options.items())
    return set(options)


def test_python_command_line_and_http_take_the_same_settings() -> None:
    assert set(AT_START) - set(PER_REQUEST) == START_ALONE
    assert set(PER_REQUEST) - set(AT_START) == REQUEST_ALONE
    python = ours(one.name for one in fields(Options))
    assert python == ours(get_args(ConversationOptions)[1]) == flags("serve") == set(AT_START)
    for body in (ChatBody, CompletionBody, ResponsesBody):
        assert ours(body.model_fields) == (python - START_ALONE) | REQUEST_ALONE | OBSERVES


def test_every_field_of_a_choice_and_every_parameter_of_a_selector_is_a_setting() -> None:
    of_choice = {one.name for one in fields(KVChoice)}
    of_selectors = {name for kind in SELECTORS.values() for name in parameters(kind())}
    assert {one.field for one in PER_REQUEST.values()} == of_choice | of_selectors
    assert not of_choice & of_selectors


def test_each_help_names_the_choices_and_the_default() -> None:
    assert all(name in PER_REQUEST["kv_select"].help for name in SELECTORS)
    assert PER_REQUEST["kv_budget"].default.startswith(str(DEFAULT_BUDGET))
    assert parse_share(PER_REQUEST["kv_recent"].default) == KVChoice().recent
    assert (PER_REQUEST["kv_sinks"].default, PER_REQUEST["kv_elastic"].default) == ("4", "on")
    assert (PER_REQUEST["kv_kernel"].default, PER_REQUEST["kv_select"].default) == ("31", "snapkv")


def test_given_settings_change_and_the_others_stay() -> None:
    before = KVChoice("snapkv", budget=9, sinks=7, select=SnapKV(window=16, kernel=5))
    assert changed(before, {}) == before
    assert changed(before, {"kv_sinks": 1, "kv_recent": "50%"}) == replace(before, sinks=1, recent=0.5)
    assert changed(before, {"kv_pooling": "avg"}).select == SnapKV(window=16, kernel=5, pooling="avg")


def test_another_selector_has_its_defaults_and_the_same_one_keeps_its_parameters() -> None:
    before = KVChoice(select=SnapKV(window=16, kernel=5))
    assert changed(before, {"kv_select": "snapkv", "kv_window": 8}).select == SnapKV(window=8, kernel=5)
    assert changed(before, {"kv_select": "tova"}).select == TOVA()
    assert changed(KVChoice(select=KeyDiff()), {"kv_select": "snapkv", "kv_kernel": 7}).select == SnapKV(kernel=7)


@pytest.mark.parametrize(
    ("given", "param", "says"),
    [
        (
            {"kv_select": "keydiff", "kv_kernel": 5},
            "kv_kernel",
            "kv_kernel is a parameter of kv_select snapkv; kv_select keydiff takes none",
        ),
        (
            {"kv_select": "tova", "kv_window": 5},
            "kv_window",
            "kv_window is a parameter of kv_select snapkv; kv_select tova takes none",
        ),
        ({"kv_select": "x"}, "kv_select", "kv_select is 'x'; it must be one of snapkv, tova, keydiff"),
        ({"kv_recent": "0%"}, "kv_recent", "kv_recent is '0%'; write a share"),
        ({"kv_protect": [[5, 5]]}, "kv_protect", "kv_protect is (5, 5); it must be spans"),
    ],
)
def test_a_parameter_that_the_selector_does_not_have_is_refused(given: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(says)}") as refused:
        changed(KVChoice(), given)
    assert refused.value.param == param


def test_an_empty_name_of_a_selector_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="kv_select is ''") as refused:
        changed(KVChoice(), {"kv_select": ""})
    assert refused.value.param == "kv_select"


def test_a_parameter_is_refused_if_the_default_selector_does_not_have_it() -> None:
    with refusal("kv_kernel", "snapkv"):
        changed(KVChoice(select=KeyDiff()), {"kv_kernel": 5})
