"""Figures in Prometheus' format, read back with Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from omnireel.observe.metrics import Metrics, PartMetrics


def figures(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    families = text_string_to_metric_families(metrics.text())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_ends_are_counted_by_how_and_for_what():
    metrics = Metrics()
    metrics.ended(status="ok", task="t2va", seconds=3.0)
    metrics.ended(status="ok", task="t2va", seconds=1.0)
    metrics.ended(status="cancelled", task="t2va", seconds=0.5)
    seen = figures(metrics)
    assert seen["omnireel_requests_total", "ok", "t2va"] == 2
    assert seen["omnireel_requests_total", "cancelled", "t2va"] == 1
    assert seen["omnireel_request_seconds_sum", "t2va"] == 4.5


def test_what_a_clip_took_is_told_by_stage_and_as_speed():
    metrics = Metrics()
    metrics.step(0.2)
    metrics.made({"queue": 5.0, "denoise": 3.0, "decode": 1.0}, clip_seconds=2.0, counts={"prompt_cache_hit": 1})
    seen = figures(metrics)
    assert seen["omnireel_stage_seconds_sum", "denoise"] == 3
    assert seen["omnireel_stage_seconds_count", "queue"] == 1
    assert seen["omnireel_output_seconds_total",] == 2
    assert seen["omnireel_output_seconds_per_second_sum",] == 0.5
    assert seen["omnireel_step_seconds_count",] == 1
    assert seen["omnireel_events_total", "prompt_cache_hit"] == 1


def test_queue_and_memory_are_read_when_somebody_asks():
    metrics, line = Metrics(), [1, 2]
    metrics.watch(waiting=lambda: len(line), running=lambda: 1)
    metrics.watch_memory("cuda:0", lambda: 7.0)
    line.append(3)
    seen = figures(metrics)
    assert seen["omnireel_requests_waiting",] == 3
    assert seen["omnireel_requests_running",] == 1
    assert seen["omnireel_device_memory_bytes", "cuda:0", "free"] == 7


def test_the_peak_is_that_of_all_runs():
    metrics = Metrics()
    metrics.peak("cpu:0", 9)
    metrics.peak("cpu:0", 4)
    assert figures(metrics)["omnireel_device_memory_bytes", "cpu:0", "peak"] == 9


def test_restarts_are_counted_by_stage():
    metrics = Metrics()
    metrics.restarted("0")
    assert figures(metrics)["omnireel_worker_restarts_total", "0"] == 1


def test_two_engines_of_a_process_share_nothing():
    first, second = Metrics(), Metrics()
    first.step(1.0)
    assert figures(second)["omnireel_step_seconds_count",] == 0


def test_a_part_tells_the_whole_of_devices_and_workers_and_leaves_requests_to_it():
    whole = Metrics()
    part = PartMetrics(whole)
    part.watch(waiting=lambda: 7, running=lambda: 7)
    part.watch_memory("cuda:0", lambda: 5.0)
    part.peak("cuda:0", 9)
    part.restarted("words")
    part.step(1.0)
    part.refused(status="queue_full", task="t2va")
    part.ended(status="ok", task="t2va", seconds=1.0)
    part.made({"denoise": 1.0}, clip_seconds=1.0, counts={"prompt_cache_hit": 2})
    seen = figures(whole)
    assert part.text() == whole.text()
    assert seen["omnireel_device_memory_bytes", "cuda:0", "free"] == 5
    assert seen["omnireel_device_memory_bytes", "cuda:0", "peak"] == 9
    assert seen["omnireel_worker_restarts_total", "words"] == 1
    assert seen["omnireel_events_total", "prompt_cache_hit"] == 2
    assert seen["omnireel_requests_waiting",] == seen["omnireel_step_seconds_count",] == 0
    assert not [name for name, *_ in seen if name in ("omnireel_requests_total", "omnireel_stage_seconds_count")]
