"""The live page in a real browser: headless Chromium by Playwright."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from support.commands import until
from support.live_events import Cluster
from unisono.config import load
from unisono.runs import RunDirectory, format_event
from unisono.simulation import Join, Kill, run_loops
from unisono.watch.server import serving
from watch_screenshot import Slowed, browser, learner_processes, wait_for_text, watched_run

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here"),
]


@pytest.fixture
def chromium() -> Iterator[Any]:
    with browser() as chromium:
        yield chromium


class Page:
    """A page that must have no error, and ask nobody else for anything."""

    def __init__(self, chromium: Any, url: str, scheme: str = "light") -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector(".card", timeout=120_000)
        self._url = url.partition("?")[0]

    def text(self, selector: str) -> str:
        return str(self.page.text_content(selector))

    def check(self) -> None:
        assert self.errors == []
        outside = [u for u in self.requests if not u.startswith((self._url, "data:"))]
        assert outside == []


def test_a_slow_learner_and_a_death_as_they_happen(chromium: Any, tmp_path: Path) -> None:
    with watched_run(tmp_path, 3) as (process, url):
        page = Page(chromium, url)
        wait_for_text(page.page, "#stage", "running", 60)
        wait_for_text(page.page, "#verdict", "slow", 60)
        page.page.wait_for_timeout(8000)
        with Slowed(learner_processes(process)[1], 5):
            seconds = wait_for_text(page.page, "#slow", "Slowest: learner 1", 10)
            print(f"named after {seconds:.1f} s")
            card = page.page.locator('.card[data-learner="1"]')
            assert "slow" in card.get_attribute("class")
        wait_for_text(page.page, "#slow", "No learner is slow", 30)
        os.kill(learner_processes(process)[2], signal.SIGKILL)
        wait_for_text(page.page, "#log", "learner 2 was lost", 10)
        wait_for_text(page.page, '.card[data-learner="2"]', "lost", 10)
        wait_for_text(page.page, "#log", "learner 3 joined", 60)
        assert "committed" in page.text("#pool")
        assert page.page.locator("#curve path").count() >= 1
        page.check()


def press(page: Any, selector: str, answer: str) -> None:
    page.click(selector)
    wait_for_text(page, "#answer", answer, 30)


def test_the_buttons(chromium: Any, tmp_path: Path) -> None:
    """On the run's own page, and the last one on a page that another process serves."""
    with watched_run(tmp_path, 3) as (_, url):
        page = Page(chromium, url)
        page.page.on("dialog", lambda dialog: dialog.accept())
        wait_for_text(page.page, "#stage", "running", 60)
        assert "token" not in page.page.url
        card = '.card[data-learner="{}"]'
        wait_for_text(page.page, card.format(1), "computing", 60)
        press(page.page, card.format(0) + " [data-action=stack]", "stacks of learner 0")
        assert "training/worker.py" in page.text("#stack pre")
        press(page.page, "#controls [data-action=checkpoint]", "a checkpoint was requested")
        wait_for_text(page.page, "#log", "checkpoint written", 60)
        press(page.page, "#controls [data-action=add]", "learner 3 was added")
        wait_for_text(page.page, "#log", "learner 3 was added on request", 30)
        wait_for_text(page.page, "#log", "learner 3 joined", 120)
        press(page.page, card.format(1) + " [data-action=remove]", "learner 1 was asked to leave")
        wait_for_text(page.page, "#log", "learner 1 left", 60)
        wait_for_text(page.page, card.format(1), "removed", 10)
        assert not page.page.is_visible(card.format(1) + " [data-action=remove]")
        page.check()
        page.page.reload()
        page.page.wait_for_selector("#controls [data-action=add]")
        without = Page(chromium, url.partition("?")[0])
        wait_for_text(without.page, "#stage", "running", 30)
        assert without.page.locator("[data-action]:visible").count() == 0
        with serving(RunDirectory(tmp_path / "run")) as (_, beside):
            other = Page(chromium, beside)
            other.page.on("dialog", lambda dialog: dialog.accept())
            press(other.page, "#controls [data-action=stop]", "a stop was requested")
            wait_for_text(other.page, "#stage", "stopped on request", 120)
            wait_for_text(other.page, "#slow", "The run was stopped", 10)
            wait_for_text(other.page, "#log", "a stop was requested", 10)
            other.check()
        until(RunDirectory(tmp_path / "run").summary.is_file, what="the summary")
    summary = RunDirectory(tmp_path / "run").read_summary()
    assert summary is not None and summary.ended == "stopped"
    assert (summary.learners_lost, summary.learners_joined) == (0, 1)


def write_run(path: Path, learners: int, seconds: int) -> RunDirectory:
    run = RunDirectory.create(path, load(None, [], {}))
    with run.metrics.open("ab") as file:
        cluster = Cluster(learners, lambda event: file.write(format_event(event)))
        cluster.start()
        cluster.waits = True
        cluster.run(seconds)
    return run


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(chromium: Any, tmp_path: Path, scheme: str) -> None:
    with serving(write_run(tmp_path / "run", 2, 5)) as (_, url):
        page = Page(chromium, url, scheme)
        colour = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(colour.removeprefix("rgb(").split(",")[0])
        assert (red > 200) == (scheme == "light")
        page.check()


def simulate_many(path: Path) -> None:
    """200 learners on a virtual clock; one is slow, one dies, one comes late."""
    data = TensorDataset(torch.randn(4 * 200 * 10, 2))

    def loop() -> None:
        torch.manual_seed(1)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        strategy = unisono.GossipRandom(every=16)
        with unisono.Learner(model, optimizer, strategy, quiet=True) as learner:
            for (x,) in learner.draw(data, batch_size=4):
                learner.step(model(x).square().mean())

    path.mkdir()
    with (path / "metrics.jsonl").open("wb") as file:
        start = {"event": "start", "time": 0.0, "learner": None, "simulated": True}
        file.write(format_event(start))
        run_loops(
            loop,
            learners=200,
            cost=0.8,
            slowness={17: 2.5},
            faults=[Kill(4.1, 42), Join(5.0, 200)],
            sink=lambda event: file.write(format_event(event)) and None,
            hosts={n: f"node{n // 20:02}" for n in range(201)},
        )


def test_the_simulated_run_of_two_hundred_learners(chromium: Any, tmp_path: Path) -> None:
    simulate_many(tmp_path / "run")
    with serving(RunDirectory(tmp_path / "run")) as (_, url):
        page = Page(chromium, url)
        assert page.page.locator("#learners .card").count() == 201
        assert "simulated" in page.text("#stage")
        assert "slowest: learner 17" in page.text("#slow")
        assert "learner 42 was lost" in page.text("#log")
        drawn = page.page.evaluate(
            "() => { const t = performance.now(); draw(); return performance.now() - t; }"
        )
        print(f"drawn in {drawn:.0f} ms")
        assert drawn < 2000
        page.page.click('#learners .card[data-learner="17"]')
        assert "node00" in page.text("#detail")
        if "WATCH_SCREENSHOT" in os.environ:
            page.page.screenshot(path=os.environ["WATCH_SCREENSHOT"], full_page=True)
        page.check()


def test_a_page_that_loses_its_server_says_so(chromium: Any, tmp_path: Path) -> None:
    with serving(write_run(tmp_path / "run", 2, 5)) as (_, url):
        page = Page(chromium, url)
    wait_for_text(page.page, "#stage", "cannot be reached", 20)
