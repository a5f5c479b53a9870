from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama's folder."""
    import tiny  # imports vLLM

    return tiny.save(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def expected(folder: Path) -> list[list[int]]:
    """The reference's answers to the tiny Llama's prompts."""
    import reference
    import tiny

    return [reference.answer(folder, prompt, tiny.BUDGET, tiny.COUNT) for prompt in tiny.prompts()]
