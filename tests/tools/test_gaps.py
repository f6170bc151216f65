import json

import pytest
import torch
from tools.gaps import Work, gap_table, main, work_of
from torch.profiler import ProfilerActivity, profile


def event(name, start, duration, category="kernel"):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration}


TRACE = {
    "traceEvents": [
        event("a", 0, 10),
        event("b", 5, 3),
        event("host", 0, 100, "cpu_op"),
        event("b", 15, 5),
        event("a", 20, 10, "gpu_memcpy"),
        event("b", 33, 7, "gpu_memset"),
        {"ph": "M", "name": "a stream"},
    ]
}


def test_gaps_are_what_no_stream_fills():
    table = gap_table(work_of(TRACE))
    assert (table.window_us, table.busy_us, table.num_gaps) == (40, 32, 2)
    assert table.idle_share == pytest.approx(0.2)
    assert [(gap.before, gap.after, gap.count, gap.total_us, gap.longest_us) for gap in table.gaps] == [
        ("a", "b", 2, 8, 5)
    ]


def test_work_that_covers_other_work_ends_last():
    table = gap_table(
        [Work(name="long", start=0, stop=10), Work(name="short", start=1, stop=2), Work(name="x", start=12, stop=13)]
    )
    assert [(gap.before, gap.after, gap.total_us) for gap in table.gaps] == [("long", "x", 2)]


def test_work_without_gaps():
    assert gap_table([Work(name="a", start=0, stop=1), Work(name="a", start=1, stop=2)]).idle_share == 0


def test_the_table_is_printed(tmp_path, capsys):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(TRACE))
    assert main([str(file)]) == 0
    text = capsys.readouterr().out
    assert "idle 20.00% in 2 gaps" in text
    assert "| a | b | 2 | 0.008 | 0.005 |" in text
    assert main([str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gaps"][0]["count"] == 2


def test_a_trace_of_the_host_alone_is_an_error(tmp_path, capsys):
    file = tmp_path / "trace.json"
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(3).sum()
    profiler.export_chrome_trace(str(file))
    assert main([str(file)]) == 1
    assert "no work of a device" in capsys.readouterr().err
    assert main([str(tmp_path / "absent.json")]) == 1
