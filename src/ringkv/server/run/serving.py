"""Serving: the objects of one model that all endpoints share. Models: the models of a server."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ringkv.base.errors import InvalidRequest, UnknownModel
from ringkv.server.run.admission import Admission
from ringkv.server.run.metrics import ModelMetrics
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.generation_config import Sampling
from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer
from ringkv.worker.supervisor import Supervisor


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be served. names: the first is its own, the others are aliases.

    template: None for a base model, which cannot chat. kv_why: why `kv_policy auto` chose its policy, or "". sampling:
    fields of `SamplingParams` that the model recommends, for requests that set none of them.
    """

    engine: Supervisor
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: tuple[str, ...]
    kv_why: str = ""
    sampling: Sampling = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Serving(LoadedModel):
    """A model that is served. timeout: seconds that a request may take, at most; None if there is no limit."""

    metrics: ModelMetrics
    created: int  # seconds since 1970
    guides: GuideProcesses
    admission: Admission
    timeout: float | None = None


class Models:
    """The models of a server, each with its engine. The first model takes requests that name none."""

    def __init__(self, served: Sequence[Serving]) -> None:
        self._served = served
        self._by_name = {name: serving for serving in served for name in serving.names}

    def __iter__(self) -> Iterator[Serving]:
        return iter(self._served)

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._by_name)

    def find(self, requested: str | None) -> Serving:
        """Return the model that a request names. Raises UnknownModel."""
        if requested is None:
            return self._served[0]
        if requested not in self._by_name:
            raise UnknownModel(f"model {requested!r} is not served here; use {' or '.join(self.names)}")
        return self._by_name[requested]


def check_names(models: Sequence[Sequence[str]]) -> None:
    """Raise InvalidRequest if two models have the same name."""
    names = [name for model in models for name in model]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise InvalidRequest(
            f"two models are named {twice}; give each a name of its own (--served-model-name)", "model"
        )
