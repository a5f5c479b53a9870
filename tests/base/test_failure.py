import inspect

import pytest

from ringkv.base import errors
from ringkv.base.failure import Failure, describe, in_short, revive

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_revived_as_the_same_class_with_the_same_text(kind):
    error = revive(describe(kind("9 is too many; use 8")))
    assert type(error) is kind
    assert str(error) == "9 is too many; use 8"


def test_the_field_at_fault_is_kept():
    assert revive(describe(errors.Unsupported("no grammars", "response_format"))).param == "response_format"


def test_an_unknown_subclass_is_described_as_its_parent():
    class Unlisted(errors.PromptTooLong): ...

    assert describe(Unlisted("x")).kind == "PromptTooLong"


def test_an_unknown_kind_is_revived_as_a_failed_request():
    assert type(revive(Failure("SystemExit", "x"))) is errors.RequestFailed


def test_an_unexpected_error_is_described_in_one_line():
    assert in_short(ValueError("first\nsecond")) == "ValueError: first"
    assert in_short(KeyError()) == "KeyError"
