"""generation_config: the sampling that a model's generation_config.json recommends."""

from collections.abc import Mapping
from pathlib import Path

from ringkv.base.errors import BadWeights, InvalidRequest
from ringkv.base.sampling import SamplingParams
from ringkv.text.files import read_json

NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
Sampling = Mapping[str, float]


def sampling_of(directory: Path) -> Sampling:
    """Return the fields of `SamplingParams` that the model recommends; nothing without such a file.

    `do_sample: false` is a temperature of 0, and the penalty counts. Raises BadWeights for a value that sampling does
    not take.
    """
    path = directory / "generation_config.json"
    read = read_json(path)
    if read.get("do_sample") is False:
        read = {"temperature": 0.0, "repetition_penalty": read.get("repetition_penalty")}
    sampling = {name: value for name in NAMES if (value := read.get(name)) is not None}
    try:
        SamplingParams(**sampling)
    except (InvalidRequest, TypeError) as error:
        raise BadWeights(f"{path}: {error}; correct it") from error
    return sampling
