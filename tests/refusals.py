"""The refusal of a request, by the field at fault and the number or name that its message must carry."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ringkv.base.errors import InvalidRequest


@contextmanager
def refusal(param: str, match: str = "", error: type[InvalidRequest] = InvalidRequest) -> Iterator[None]:
    """Expect an error of this class that names `param`, and whose text matches. Its wording is the code's."""
    with pytest.raises(error, match=match) as raised:
        yield
    assert raised.value.param == param
