import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation import needed


def test_with_all_packages_there_is_nothing_to_say():
    needed.check()


def test_what_is_missing_is_named_with_the_command_that_gets_it(monkeypatch):
    find = needed.find_spec
    monkeypatch.setattr(needed, "find_spec", lambda name: None if name == "rouge_score" else find(name))
    with pytest.raises(InvalidRequest, match="not installed: rouge-score; get them with: pip install rouge-score"):
        needed.check()
