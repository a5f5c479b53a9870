"""Random requests through vLLM's real scheduler with a worker that only keeps block rows, with steps in flight.

What must hold at each step: no block is in the rows of two requests unless it is hashed; free and held blocks are all
there are; what a decoding row reads and writes is its own. With reservations nothing is preempted.
"""

from collections import deque
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("vllm")

import transformers
from ringkv_vllm import stats
from ringkv_vllm.arithmetic import Blocks
from ringkv_vllm.registration import register_all
from ringkv_vllm.scheduler import SnapStreamAsyncScheduler, SnapStreamScheduler
from ringkv_vllm.settings import read
from ringkv_vllm.spec import SnapStreamSpec
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from ringkv.base.errors import InvalidRequest

BLOCK, LONGEST, BUDGET = 16, 512, 96
SETTINGS = {"ringkv": {"kv_budget": BUDGET, "kv_recent": 24, "kv_window": 8, "allow_full": True}}
KINDS = [{}, {}, {}, {"kv_budget": 64}, {"kv_policy": "full"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=LONGEST,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(made)
    register_all()
    init_none_hash(sha256)
    return made


def scheduler(
    folder: Path, kind: Any, caches: bool, blocks: int, batched: int = 96, settings: Any = SETTINGS, threshold: int = 0
) -> Any:
    model = ModelConfig(str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=LONGEST)
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=caches),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=batched,
            long_prefill_token_threshold=threshold,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            async_scheduling=kind is SnapStreamAsyncScheduler,
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        additional_config=settings,
    )
    plain = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=model.dtype)
    spec = SnapStreamSpec.of(plain, read(SETTINGS))
    groups = [KVCacheGroupSpec(["layer"], spec)]
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    config.cache_config.num_gpu_blocks = blocks
    return kind(config, cache, StructuredOutputManager(config), block_size=BLOCK)


class Worker:
    """Rows of block ids as a worker has them: ids are only appended."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def run(self, out: Any, requests: dict[str, Request], random: Random) -> ModelRunnerOutput:
        for name in out.finished_req_ids:
            self.rows.pop(name, None)
        for new in out.scheduled_new_reqs:
            self.rows[new.req_id], self.computed[new.req_id] = list(new.block_ids[0]), new.num_computed_tokens
        cached = out.scheduled_cached_reqs
        for name, ids, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            new_ids = list(ids[0]) if ids else []
            self.rows[name] = new_ids if name in cached.resumed_req_ids else self.rows[name] + new_ids
            self.computed[name] = computed
        sampled = []
        for name, count in out.num_scheduled_tokens.items():
            request, end = requests[name], self.computed[name] + count
            self._check(request, end, count)
            sampled.append([random.randrange(99)] if end >= request.num_tokens else [])
        names = list(out.num_scheduled_tokens)
        return ModelRunnerOutput(names, {name: row for row, name in enumerate(names)}, sampled)

    def _check(self, request: Request, end: int, count: int) -> None:
        blocks = blocks_of(request)
        row = self.rows[request.request_id]
        assert len(row) >= blocks.row(end), "a token has no block"
        start = end - count
        assert not start < blocks.prompt < end, "a chunk goes on after the prompt's end"
        if start >= blocks.prompt:
            assert count == 1, "an answer is replayed token by token"
        if end == blocks.prompt and blocks.is_copied:
            queries = read(SETTINGS).queries
            assert count >= min(queries, blocks.prompt), "queries that vote are missing in the last chunk"


def blocks_of(request: Request) -> Blocks:
    return Blocks(read(SETTINGS).of_request(request.sampling_params.extra_args), request.num_prompt_tokens, BLOCK)


def evicted_of(request: Request) -> int:
    """Return the tokens that a request no longer holds."""
    extra, seen = request.sampling_params.extra_args or {}, request.num_computed_tokens
    if "kv_policy" in extra or seen < request.num_prompt_tokens:
        return 0
    return max(0, seen - extra.get("kv_budget", BUDGET))


def check_pool(made: Any) -> None:
    manager, pool = made.kv_cache_manager.coordinator.single_type_managers[0], made.kv_cache_manager.block_pool
    held: dict[int, int] = {}
    for row in manager.req_to_blocks.values():
        for block in row:
            if not block.is_null:
                held[block.block_id] = held.get(block.block_id, 0) + 1
                assert held[block.block_id] == 1 or block.block_hash is not None, "two requests share an unhashed block"
    deferred = {block.block_id for _, blocks in made.deferred_frees for block in blocks if not block.is_null}
    assert pool.get_num_free_blocks() + len(held.keys() | deferred) == pool.num_gpu_blocks - 1  # the null block


def asked(number: int, random: Random, hasher: Any) -> Request:
    stem = [random.randrange(3) for _ in range(2)] * 200
    other = [random.randrange(99) for _ in stem]
    prompt = random.choice((stem, other))[: random.randrange(1, 300)]
    params = SamplingParams(max_tokens=random.randrange(1, 60), ignore_eos=True, extra_args=random.choice(KINDS))
    params.update_from_generation_config({}, eos_token_id=None)
    return Request(f"r{number}", prompt, params, None, block_hasher=hasher)


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize(("kind", "in_flight"), [(SnapStreamScheduler, 0), (SnapStreamAsyncScheduler, 1)])
@pytest.mark.parametrize("reserves", [True, False])
def test_random_requests(
    folder: Path, kind: Any, in_flight: int, caches: bool, reserves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reserves:
        monkeypatch.setattr("ringkv_vllm.manager.SnapStreamManager._reserved", lambda *_: 0)
    random, worker = Random(int(caches) + 2 * in_flight + 4 * reserves), Worker()
    before = stats.EVICTED._value.get(), stats.SAVED._value.get()
    made = scheduler(folder, kind, caches, blocks=60)
    hasher = get_request_block_hasher(BLOCK, sha256)
    requests: dict[str, Request] = {}
    flying: deque[Any] = deque()
    preempted, finished, number = 0, 0, 0
    while finished < 300:
        while number < 300 and made.get_num_unfinished_requests() < 12 and random.random() < 0.7:
            requests[f"r{number}"] = request = asked(number, random, hasher)
            made.add_request(request)
            number += 1
        if random.random() < 0.02 and made.running:
            victim = random.choice(made.running).request_id
            made.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
        out = made.schedule()
        flying.append((out, worker.run(out, requests, random)))
        check_pool(made)
        while len(flying) > (in_flight if made.has_unfinished_requests() else 0):
            made.update_from_output(*flying.popleft())
            check_pool(made)
        finished = number - made.get_num_unfinished_requests() if number == 300 else 0
        preempted = sum(request.num_preemptions for request in requests.values())
    while flying:
        made.update_from_output(*flying.popleft())
    made.schedule()
    assert made.kv_cache_manager.block_pool.get_num_free_blocks() == 59, "blocks were lost"
    assert (preempted == 0) == reserves, preempted
    evicted, saved = stats.EVICTED._value.get() - before[0], stats.SAVED._value.get() - before[1]
    least = sum(map(evicted_of, requests.values()))
    assert evicted == least if reserves else evicted >= least
    assert saved > 0


@pytest.mark.parametrize(
    ("batched", "settings", "said"),
    [
        (12, SETTINGS, "max-num-batched-tokens 12 may leave no room .* raise it to 16"),
        (96, {}, "needs --additional-config"),
        (96, {"ringkv": {"kv_budget": 4}}, "kv_budget 4 is less than"),
        (96, {"ringkv": {"kv_budget": 96, "kv_policy": "arkvale"}}, "choose snapstream or streaming"),
        (96, {"ringkv": {"kv_budget": 96, "kv_select": "kvzip"}}, "prefills a prompt twice"),
        (96, {"ringkv": {"budget": 96}}, "budget is not a setting"),
    ],
)
def test_what_does_not_fit_is_refused_at_start(folder: Path, batched: int, settings: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        scheduler(folder, SnapStreamScheduler, False, 60, batched, settings)


def test_a_threshold_below_the_queries_that_vote_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"--long-prefill-token-threshold 7 cuts off .* raise it to 8"):
        scheduler(folder, SnapStreamScheduler, False, 60, threshold=7)
    scheduler(folder, SnapStreamScheduler, False, 60, threshold=8)


def test_a_request_without_valid_settings_keeps_what_the_server_keeps(folder: Path) -> None:
    given = read(SETTINGS)
    assert given.of_admitted({"kv_budget": 10**6}) == given.choice
    assert given.of_admitted({"kv_budget": 64}).budget == 64
    assert given.of_admitted({"kv_policy": "full"}) is None
