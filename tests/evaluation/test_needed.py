import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation import needed


def test_with_all_packages_the_check_passes():
    needed.check()


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    find = needed.find_spec
    monkeypatch.setattr(needed, "find_spec", lambda name: None if name == "rouge_score" else find(name))
    with pytest.raises(
        InvalidRequest, match=r"not installed: rouge-score; install the extra .* pip install 'ringkv\[eval\]'"
    ):
        needed.check()
