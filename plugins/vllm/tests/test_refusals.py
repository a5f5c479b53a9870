"""Each feature that does not go together with a cache of fixed size is refused by its name."""

from types import SimpleNamespace
from typing import Any

import pytest
from ringkv_vllm.refusals import REFUSED, check_classes, check_config, check_layer

from ringkv.base.errors import InvalidRequest

ONES = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1, "pipeline_parallel_size": 1}


def config(parallel: dict[str, Any] | None = None, cache_dtype: str = "auto", **changes: Any) -> SimpleNamespace:
    usual = {"speculative_config": None, "kv_transfer_config": None, "model_config": SimpleNamespace(use_mla=False)}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**({"enable_dbo": False} | ONES | (parallel or {}))),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        **(usual | changes),
    )


CASES = {
    "speculative decoding": config(speculative_config=1),
    "a diffusion model": config(diffusion_config=1),
    "a KV connector": config(kv_transfer_config=1),
    "decode context parallelism": config({"decode_context_parallel_size": 2}),
    "prefill context parallelism": config({"prefill_context_parallel_size": 2}),
    "pipeline parallelism": config({"pipeline_parallel_size": 2}),
    "a quantised KV cache": config(cache_dtype="fp8"),
    "micro-batches (--enable-dbo)": config({"enable_dbo": True}),
    "latent attention (MLA)": config(model_config=SimpleNamespace(use_mla=True)),
}


def test_there_is_a_case_for_each() -> None:
    assert CASES.keys() == REFUSED.keys()
    check_config(config())


@pytest.mark.parametrize("feature", REFUSED)
def test_a_feature_is_refused_by_its_name(feature: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_config(CASES[feature])
    assert f"does not serve with {feature}: {REFUSED[feature][1]}" in str(refused.value)


def test_settings_without_the_plug_ins_scheduler_or_worker_are_refused() -> None:
    ours = {"scheduler_cls": "ringkv_vllm.scheduler.SnapStreamScheduler", "worker_cls": "ringkv_vllm.worker.Any"}

    def check(**changes: Any) -> None:
        names = ours | changes
        scheduler, worker = (SimpleNamespace(**{name: given}) for name, given in names.items())
        check_classes(SimpleNamespace(scheduler_config=scheduler, parallel_config=worker))

    check()
    with pytest.raises(InvalidRequest, match="--scheduler-cls is not a class of ringkv-vllm"):
        check(scheduler_cls=None)
    with pytest.raises(InvalidRequest, match="--worker-cls is not a class of ringkv-vllm"):
        check(worker_cls="vllm.v1.worker.cpu_worker.CPUWorker")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window": 512}, "sliding window"),
        ({"alibi_slopes": [1.0]}, "ALiBi"),
        ({"kv_sharing_target_layer_name": "model.layers.0"}, "share the cache"),
    ],
)
def test_layers_that_read_positions_are_refused(changes: dict[str, Any], said: str) -> None:
    usual = {"sliding_window": -1, "alibi_slopes": None, "kv_sharing_target_layer_name": None}
    check_layer(SimpleNamespace(**usual))
    with pytest.raises(InvalidRequest, match=said):
        check_layer(SimpleNamespace(**(usual | changes)))
