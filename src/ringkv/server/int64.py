"""Int64: an integer field of a request. JSON may write it as 100 or 100.0; messages to the engine hold 64 bits."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

INT64 = 2**63 - 1


def as_integer(value: Any) -> Any:
    """Convert a float without a fraction to an int; other values pass unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int64 = Annotated[int, Field(ge=-INT64, le=INT64), BeforeValidator(as_integer)]
