from bench.readme import README, with_tables


def test_the_readme_shows_the_tables_that_the_benchmarks_kept() -> None:
    text = README.read_text()
    assert with_tables(text) == text
