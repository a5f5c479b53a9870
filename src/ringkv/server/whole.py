"""Whole: a whole number as clients may write it, that a message to the engine can hold."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

INT64 = 2**63 - 1


def whole(value: Any) -> Any:
    """100.0 is a whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, Field(ge=-INT64, le=INT64), BeforeValidator(whole)]
