"""A value that was removed is refused with its remedy."""

import pytest

from ringkv.base.checks import check, one_of
from ringkv.base.errors import InvalidRequest
from ringkv.base.withdrawn import WITHDRAWN_VALUES


@pytest.mark.parametrize(("setting", "value"), WITHDRAWN_VALUES)
def test_a_removed_value_is_refused_with_its_remedy(setting: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check([one_of(setting, value, ("other",))])
    assert refused.value.param == setting
    assert WITHDRAWN_VALUES[setting, value] in str(refused.value)
