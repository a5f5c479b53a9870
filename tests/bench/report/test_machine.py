from bench.report.machine import machine_table

HEAD = ("model", "machine", "rate")


def test_a_machine_that_all_rows_share_is_named_once_below_the_table() -> None:
    lines = machine_table(HEAD, [("a", "Intel", "1"), ("b", "Intel", "2")]).splitlines()
    assert lines == ["| model | rate |", "|---|---:|", "| a | 1 |", "| b | 2 |", "", "Machine: Intel."]


def test_two_machines_have_a_column() -> None:
    lines = machine_table(HEAD, [("a", "Intel", "1"), ("a", "AMD", "2")]).splitlines()
    assert lines[0] == "| model | machine | rate |"
    assert lines[2:] == ["| a | Intel | 1 |", "| a | AMD | 2 |"]
    assert machine_table(HEAD, []).splitlines() == [lines[0], "|---|---:|---:|"]
