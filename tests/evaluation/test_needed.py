import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation import needed
from ringkv.evaluation.tasks.texts import words


def test_with_all_packages_the_check_passes():
    needed.check()


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    find = needed.find_spec
    monkeypatch.setattr(needed, "find_spec", lambda name: None if name == "rouge_score" else find(name))
    with pytest.raises(InvalidRequest, match=r"rouge-score.* 'ringkv\[eval\]'"):
        needed.check()


def test_a_task_without_its_words_is_refused_with_the_same_command(monkeypatch):
    monkeypatch.setattr(needed, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"wonderwords.* 'ringkv\[eval\]'"):
        words.__wrapped__("noun")
