"""KVFields: the kv_* fields of a request, generated from `plan.kv_settings`."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from ringkv.plan.kv_settings import PER_REQUEST, Setting
from ringkv.server.int64 import Int64

SPANS = list[Annotated[tuple[Int64, Int64], Field(strict=False)]]
TYPES: dict[type, Any] = {int: Int64, float: float, str: str, bool: bool, tuple: SPANS}


def _field(setting: Setting) -> Any:
    return TYPES[setting.kind] | None, Field(default=None, description=f"{setting.help}.")


KVFields: type[BaseModel] = create_model(
    "KVFields",
    __config__=ConfigDict(extra="allow", strict=True),
    **{name: _field(setting) for name, setting in PER_REQUEST.items()},
)
