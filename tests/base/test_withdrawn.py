"""What was removed is refused with its remedy, wherever a user can set it."""

import re
from dataclasses import fields

import pytest

from ringkv.base.checks import check, one_of
from ringkv.base.errors import InvalidRequest
from ringkv.base.withdrawn import WITHDRAWN_SETTINGS, WITHDRAWN_VALUES
from ringkv.plan.options import Options


@pytest.mark.parametrize(("setting", "value"), WITHDRAWN_VALUES)
def test_a_removed_value_is_refused_with_its_remedy(setting: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check([one_of(setting, value, ("other",))])
    assert refused.value.param == setting
    assert WITHDRAWN_VALUES[setting, value] in str(refused.value)


def test_a_removed_setting_is_not_an_option_and_its_remedy_names_only_options() -> None:
    options = {field.name for field in fields(Options)}
    assert not options & WITHDRAWN_SETTINGS.keys()
    assert {name for remedy in WITHDRAWN_SETTINGS.values() for name in re.findall(r"kv_\w+", remedy)} <= options
