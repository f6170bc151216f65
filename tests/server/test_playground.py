"""The playground: served as it lies there, asking nobody else, and used in a real browser where there is one."""

import re

import pytest
from PIL import Image
from tests.support.browser import CHROMIUM, browser
from tests.support.servers import every_task, running

from omnireel.server.playground import PAGE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def test_the_page_is_served_without_a_key_and_may_load_nothing_from_elsewhere(toy):
    answer = toy.http.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.text == PAGE.read_text()
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_the_page_names_no_other_place():
    assert not re.findall(r"https?://|//[a-z]+\.|@import|url\(", PAGE.read_text())


def test_every_field_has_a_label():
    text = PAGE.read_text()
    for field in re.findall(r"<(?:input|select|textarea)\b[^>]*>", text):
        name = re.search(r'(?:name|id)="(\w+)"', field)
        assert name is not None
        assert re.search(rf'<label>[^<]*<\w+ name="{name[1]}"|<label for="{name[1]}">', text), field


def fill(page, **fields):
    for name, value in fields.items():
        page.run(f"document.querySelector('[name={name}]').value = {value!r}")


@needs_browser
def test_a_clip_is_asked_for_watched_and_played(tmp_path):
    Image.new("RGB", (96, 64), "red").save(tmp_path / "first.png")
    Image.new("RGB", (96, 64), "blue").save(tmp_path / "last.png")
    checkpoint = every_task(tmp_path / "checkpoint")
    with (
        running(tmp_path / "server", "--preview-every", "1", model=str(checkpoint)) as server,
        browser(tmp_path / "browser") as page,
    ):
        page.resize(1200, 900)
        page.go(f"{server.url}/")
        page.until("document.querySelectorAll('[name=task] option').length === 4")
        page.give("#files", tmp_path / "last.png", tmp_path / "first.png")
        page.until("document.querySelectorAll('#chosen li').length === 2")
        page.run("document.querySelector('[aria-label=\"move first.png up\"]').click()")
        assert page.run("document.activeElement.closest('#chosen') !== null")
        fill(page, prompt="<b>the ball</b> rolls on", seconds="4", size="64x64", num_inference_steps="6", seed="7")
        page.run("document.getElementById('go').click()")
        page.until("document.querySelector('.job .preview') || document.querySelector('.job video')")
        page.picture(tmp_path / "watched.png")
        page.run("document.querySelector('.job button')?.focus()")
        page.until("document.querySelector('.job video') && document.querySelector('.job video').readyState >= 1")
        facts = "(v => [v.videoWidth, v.videoHeight, Math.round(v.duration)])(document.querySelector('.job video'))"
        assert page.run(facts) == [64, 64, 4]
        assert page.run("document.querySelector('.job p').innerHTML") == "&lt;b&gt;the ball&lt;/b&gt; rolls on"
        page.picture(tmp_path / "made.png")
        (job,) = server.http.get("/v1/videos").json()["data"]
        assert (job["task"], job["seed"]) == ("fl2va", 7)
        assert page.wrong == []
        assert [url for url in page.asked if not url.startswith((server.url, "data:", "blob:", "about:"))] == []
        page.go(f"{server.url}/")
        page.until("document.querySelector('.job video')")
        page.resize(360, 720)
        page.picture(tmp_path / "phone.png")
        assert page.run("document.documentElement.scrollWidth") <= 360


@needs_browser
def test_mistakes_keys_and_the_keyboard(tmp_path):
    with running(tmp_path / "server", "--api-key", "k") as server, browser(tmp_path / "browser") as page:
        server.http.headers["Authorization"] = "Bearer k"
        page.go(f"{server.url}/")
        page.until("document.getElementById('problem').textContent.includes('key')")
        fill(page, key="k")
        page.run("document.querySelector('[name=key]').dispatchEvent(new Event('change'))")
        page.until("document.getElementById('model').textContent === 'toy'")
        fill(page, prompt="a kite", size="7x7")
        page.run("document.querySelector('[name=prompt]').focus()")
        places = []
        while (place := page.run("document.activeElement.id || document.activeElement.name")) != "go":
            places.append(place)
            page.press("Tab")
            assert len(places) < 30
        assert {"prompt", "task", "files", "seconds", "seed", "key"} <= set(places)
        page.press("Enter", "\r")
        page.until("document.getElementById('problem').textContent.includes('height')")
        fill(page, size="64x32", seconds="1")
        page.press("Enter", "\r")
        page.until("document.querySelector('.job video')")
        page.until("document.querySelector('.job video').src.startsWith('blob:')")
        page.run("[...document.querySelectorAll('.job button')].find((b) => b.textContent === 'Delete').click()")
        page.until("!document.querySelector('.job')")
        assert server.http.get("/v1/videos").json()["data"] == []
