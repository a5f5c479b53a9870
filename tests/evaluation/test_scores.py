"""A perfect answer scores 1, an empty one 0, and others the values worked out from the papers' definitions."""

import pytest

from ringkv.evaluation.scores import (
    all_found,
    any_found,
    class_named,
    edit_similarity,
    f1,
    first_line,
    last_number_right,
    letter_right,
    numbers_right,
    paragraph_right,
    rouge_l,
)

SCORES = [all_found, any_found, f1, rouge_l, edit_similarity]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("reference", ["Wooden Crosses", "1234567", "    return x + 1"])
def test_the_reference_itself_scores_1_and_an_empty_answer_0(score, reference):
    assert score(reference, [reference]) == 1
    assert score("", [reference]) == 0


def test_all_found_is_the_share_and_any_found_one_of_them():
    assert all_found("ABC and def", ["abc", "xyz", "DEF"]) == pytest.approx(2 / 3)
    assert (any_found("abc", ["abc", "xyz"]), any_found("no", ["abc", "xyz"])) == (1, 0)


def test_f1_ignores_case_articles_and_marks():
    assert f1("The film, 'Wooden Crosses'!", ["wooden crosses"]) == pytest.approx(2 * 2 / (3 + 2))
    assert f1("an apple a day", ["apple day"]) == 1


def test_f1_uses_the_best_reference():
    assert f1("Paris", ["London", "Paris, France"]) == pytest.approx(2 / 3)


def test_a_class_is_shared_with_all_that_are_named_but_not_with_its_own_part():
    classes = ["Date", "Description of something", "Description of a person", "Description"]
    assert class_named("Date", ["Date"], classes) == 1
    assert class_named("Date or Description of a person", ["Date"], classes) == pytest.approx(1 / 3)
    assert class_named("Description of a person", ["Description of a person"], classes) == 1
    assert class_named("none of them", ["Date"], classes) == 0


def test_numbers_score_the_share_that_is_right():
    assert numbers_right("17", ["17"]) == 1
    assert numbers_right("between 17 and 19", ["17"]) == 0.5
    assert numbers_right("seventeen", ["17"]) == 0
    assert paragraph_right("Paragraph 7", ["Paragraph 7"]) == 1
    assert paragraph_right("Paragraph 7 or 17", ["Paragraph 17"]) == 0.5


def test_the_first_line_of_code_is_neither_a_fence_nor_a_comment():
    assert edit_similarity("```python\n# here\n    x = 1\n    y = 2", ["    x = 1"]) == 1
    assert edit_similarity("```", ["`"]) == 0
    assert edit_similarity("```\n    x = 1\n```", ["    x = 2"]) == pytest.approx(8 / 9)  # of 18 letters 16 are common


def test_few_shot_answers_end_with_their_line():
    assert first_line("\nDate\nQuestion: and now?") == "Date"


def test_rouge_l_is_the_longest_common_subsequence():
    answer, reference = "the cat sat on a mat", "the cat lay on the mat"  # the cat on mat: 4 of 6 and 6
    assert rouge_l(answer, [reference]) == pytest.approx(4 / 6)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("so she makes 18", 1),
        ("#### $1,018", 0),
        ("it was 17, then 18.", 1),
        (r"\boxed{18} as 3 + 15 shows 5", 1),
        ("18.0", 1),
        ("eighteen", 0),
    ],
)
def test_the_last_number_counts_but_a_box_takes_precedence(text, right):
    assert last_number_right(text, ["18"]) == right


@pytest.mark.parametrize(
    "text",
    [
        "The correct answer is (C)",
        "The correct answer is C.",
        "**(C)** because A is wrong",
        "C",
        "C) four",
        "C. Four",
        "C\nas",
    ],
)
def test_a_letter_is_found_in_any_form(text):
    assert letter_right(text, ["C"]) == 1
    assert letter_right(text, ["A"]) == 0


@pytest.mark.parametrize("text", ["The correct answer is Both of them", "A careful reader says so", "Because of B", ""])
def test_a_word_is_not_a_letter(text):
    assert not any(letter_right(text, [letter]) for letter in "ABCD")
