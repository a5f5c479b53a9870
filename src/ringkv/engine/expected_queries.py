"""expected_queries: gives slots what a model's queries are like, from the statistics that `ringkv calibrate` wrote."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ringkv.base.config import EngineConfig
from ringkv.base.errors import BadCache, InvalidRequest
from ringkv.cache.body import Body
from ringkv.cache.calibrated_body import CalibratedBody
from ringkv.cache.watching.triattention import ExpectedQueries, Rotary
from ringkv.models.decoder import Decoder
from ringkv.weights.query_statistics import QueryStatistics, path_of, read


def check_calibrated(config: EngineConfig) -> None:
    """Raise InvalidRequest, which names the command, if there are no statistics of the model."""
    if not _path(config).is_file():
        raise InvalidRequest(
            f"kv_policy {config.kv.policy} needs statistics of the model's queries, and there are none; make them "
            f"once with `ringkv calibrate {config.model_dir}`",
            "kv_policy",
        )


def expecting(bodies: Sequence[Body], decoder: Decoder, config: EngineConfig) -> tuple[Body, ...]:
    """Return bodies whose reviews know what queries to expect, if they need that.

    Raises BadCache if the statistics cannot be read, or are not of this model.
    """
    if not config.slot_format.calibrated:
        return tuple(bodies)
    check_calibrated(config)
    path = _path(config)
    statistics = read(path)
    assert statistics is not None
    return tuple(
        body.expecting(list(_of_layers(body, decoder, statistics, path))) if isinstance(body, CalibratedBody) else body
        for body in bodies
    )


def _path(config: EngineConfig) -> Path:
    return path_of(config.model_dir, config.cache_dir)


def _of_layers(
    body: CalibratedBody, decoder: Decoder, statistics: QueryStatistics, path: Path
) -> Iterator[ExpectedQueries]:
    group = body.group
    for layer in group.layers:
        means = statistics.means(layer) if layer in statistics.layers else None
        if means is None or means.queries.shape != (group.spec.key.heads, group.queries, group.spec.key.width):
            raise BadCache(f"{path} is of another model; delete it, and run `ringkv calibrate` again")
        rotate, lengths = (partial(one, decoder.kinds[layer]) for one in (decoder.rotate, decoder.pair_lengths))
        mean, length = (one.to(body.device) for one in means)
        yield ExpectedQueries.of(mean, length, Rotary(rotate, lengths))
