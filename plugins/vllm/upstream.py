"""upstream: vLLM's own tests of its scheduler and its cache manager, run on the plug-in's subclasses of them.

    python plugins/vllm/upstream.py FOLDER [-k NAMES]

FOLDER has vLLM's sources, such as its unpacked sdist, of the version that this Python has. Requests keep every token,
and admission reserves nothing, so a subclass has to do what vLLM does, except what `DIFFERENT` names. A test is
skipped, with the reason, if the plug-in refuses its configuration, if its layers are not all full attention, or if it
fails without the plug-in as well, such as one that downloads a model.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

import pytest
import transformers
import vllm.v1.core.kv_cache_manager as managers
import vllm.v1.core.sched.async_scheduler as async_scheduler
import vllm.v1.core.sched.scheduler as scheduler
from ringkv_vllm.manager import SnapStreamManager
from ringkv_vllm.registration import register_all
from ringkv_vllm.scheduler import SnapStreamMixin
from ringkv_vllm.settings import read
from ringkv_vllm.spec import SnapStreamSpec
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig

from ringkv.base.errors import InvalidRequest

SETTINGS = {"ringkv": {"kv_budget": 1 << 24, "kv_window": 1, "kv_kernel": 1}}
TESTS = ("test_scheduler", "test_async_scheduler", "test_prefix_caching", "test_deferred_block_free")
MODEL = "facebook/opt-125m"  # that most of the tests name
NOT_HASHED, REPLAYED = "answers are not in the prefix cache", "a preempted answer runs again token by token"
DIFFERENT = {
    "test_decode": NOT_HASHED,
    "test_prefix_caching_for_multi_turn": NOT_HASHED,
    "test_preemption_re_records_prefix_cache_query": NOT_HASHED,
    "test_kv_cache_release_after_keep_pause_preserves_requests": REPLAYED,
}
"""By test: what the plug-in does otherwise on purpose."""


def ours(config: KVCacheConfig) -> KVCacheConfig:
    """Return the configuration with layers of the plug-in. Skips the test if others are among them."""
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    if not specs or any(type(spec) is not FullAttentionSpec for spec in specs):
        pytest.skip("layers that are not full attention")
    settings = read(SETTINGS)
    groups = [
        replace(group, kv_cache_spec=SnapStreamSpec.of(group.kv_cache_spec, settings))
        for group in config.kv_cache_groups
    ]
    return replace(config, kv_cache_groups=groups)


class OurScheduler:
    """A mixin before the plug-in's, for the configurations of tests."""

    def __init__(self, vllm_config: Any, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        vllm_config.additional_config = SETTINGS
        try:
            super().__init__(vllm_config, ours(kv_cache_config), *args, **kwargs)
        except InvalidRequest as error:
            pytest.skip(f"refused: {str(error).split(':')[0][:60]}")


class OurManager(managers.KVCacheManager):
    """A manager without a scheduler, which learns requests as they come."""

    def __init__(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        is_bare = not any(isinstance(g.kv_cache_spec, SnapStreamSpec) for g in kv_cache_config.kv_cache_groups)
        super().__init__(ours(kv_cache_config) if is_bare else kv_cache_config, *args, **kwargs)
        self.known: dict[str, Any] = {}
        for manager in self.coordinator.single_type_managers:
            manager.bind(read(SETTINGS), self.known, 1 << 24)

    def get_computed_blocks(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.known[request.request_id] = request
        return super().get_computed_blocks(request, *args, **kwargs)

    def allocate_slots(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.known[request.request_id] = request
        return super().allocate_slots(request, *args, **kwargs)


@contextmanager
def patched() -> Iterator[None]:
    """Let tests import the plug-in's classes by vLLM's names."""
    plain = type("Scheduler", (OurScheduler, SnapStreamMixin, scheduler.Scheduler), {})
    asynchronous = type("AsyncScheduler", (OurScheduler, SnapStreamMixin, async_scheduler.AsyncScheduler), {})
    with (
        patch.object(SnapStreamManager, "_reserved", lambda *_: 0),
        patch.object(scheduler, "Scheduler", plain),
        patch.object(async_scheduler, "AsyncScheduler", asynchronous),
        patch.object(managers, "KVCacheManager", OurManager),
        patch.object(scheduler, "KVCacheManager", OurManager),
    ):
        yield


class Report:
    """Counts outcomes, and the reasons of tests that do not apply. skipped: reasons by name."""

    def __init__(self, skipped: Mapping[str, str]) -> None:
        self.outcomes, self.reasons, self.failed = Counter[str](), Counter[str](), list[str]()
        self._skipped = skipped

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            if reason := self._skipped.get(item.name) or self._skipped.get(item.originalname):
                item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.outcome == "skipped":
            self.reasons[str(report.longrepr[-1])[:90]] += 1
        if report.outcome == "failed":
            self.failed.append(report.nodeid.split("::")[-1])


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-k", default="", help="as pytest's")
    parser.add_argument("--plain", action="store_true", help="print the tests that fail without the plug-in")
    args = parser.parse_args()
    if args.plain:
        print(json.dumps(run(args, Report({})).failed))
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--plain"]
    without = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    failing = json.loads(without.stdout.splitlines()[-1])
    register_all()
    with patched():
        report = run(args, Report(dict.fromkeys(failing, "fails without the plug-in") | DIFFERENT))
    print(dict(report.outcomes), *(f"{count:5} {reason}" for reason, count in report.reasons.most_common()), sep="\n")
    sys.exit(bool(report.failed))


def run(args: Namespace, report: Report) -> Report:
    sources = args.folder.resolve()
    sys.path.insert(0, str(sources))
    with TemporaryDirectory() as folder:
        transformers.OPTConfig(architectures=["OPTForCausalLM"]).save_pretrained(Path(folder, MODEL))
        before = Path.cwd()
        os.chdir(folder)
        files = [str(sources / "tests" / "v1" / "core" / f"{name}.py") for name in TESTS]
        options = ["--noconftest", "-q", "-p", "no:cacheprovider", "--tb=short", "-W", "ignore"]
        pytest.main([*options, *(["-k", args.k] if args.k else []), *files], plugins=[report])
        os.chdir(before)
    return report


if __name__ == "__main__":
    main()
