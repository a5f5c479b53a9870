from bench.clients.lm_eval import CONTEXT, CONTINUATION, WINDOWS, _windows


def test_windows_follow_one_another_and_are_cut_between_words() -> None:
    words = [f"w{n}" for n in range(WINDOWS * (CONTEXT + CONTINUATION) + 5)]
    windows = list(_windows(" ".join(words)))
    assert len(windows) == WINDOWS
    assert windows[0]["context"].split() == words[:CONTEXT]
    assert windows[0]["continuation"] == " " + " ".join(words[CONTEXT : CONTEXT + CONTINUATION])
    joined = " ".join(window["context"] + window["continuation"] for window in windows)
    assert joined.split() == words[: WINDOWS * (CONTEXT + CONTINUATION)]
