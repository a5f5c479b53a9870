"""Options, resolved with plenty of memory."""

from pathlib import Path
from typing import Any

from ringkv.base.config import EngineConfig
from ringkv.models.config import ModelConfig, parse_config
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.plan.shapes import configurations
from tests.plan.models import SMOLLM2

PLENTY = 10**14  # bytes
DIRECTORY = Path("models/some-model")
DEEPSEEK = parse_config({key: value for key, value in configurations()["deepseek-v2-lite"].items() if key != "hub"})


def resolved(model: ModelConfig = SMOLLM2, memory: int = PLENTY, **options: Any) -> EngineConfig:
    return resolve(DIRECTORY, model, Options(**options), memory)
