from bench.beside import checked_out, options


def test_options_are_fields_with_numbers_read_as_numbers() -> None:
    assert options("kv_policy=arkvale,kv_page=16,slots=2") == [("kv_policy", "arkvale"), ("kv_page", 16), ("slots", 2)]


def test_a_commit_is_checked_out_into_a_folder_that_goes() -> None:
    with checked_out("HEAD") as folder:
        assert (folder / "pyproject.toml").is_file()
    assert not folder.exists()
