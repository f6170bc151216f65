"""The server's own figures."""

from omnireel.server.measures import Measures


def test_figures_are_told_in_the_words_of_prometheus():
    measures = Measures()
    measures.watch("jobs_queued", "jobs that wait", lambda: 3)
    measures.answered("GET", 200)
    measures.ended("completed")
    text = measures.text()
    assert "omnireel_jobs_queued 3.0" in text
    assert 'omnireel_http_answers_total{method="GET",status="200"} 1.0' in text
    assert 'omnireel_jobs_total{status="completed"} 1.0' in text


def test_made_up_methods_share_a_line():
    measures = Measures()
    for k in range(5):
        measures.answered(f"X{k}", 405)
    assert 'omnireel_http_answers_total{method="other",status="405"} 5.0' in measures.text()
