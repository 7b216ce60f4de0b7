"""Makes docs/images/watch.png and watch_dark.png: a run with a slow learner and a death.

    python tools/watch_screenshot.py [--out docs/images]

Trains on synthetic frames with 4 learners, slows one of them down 5 times, kills another, and takes
the pictures with headless Chromium (Playwright, and a chromium on the PATH): the whole page, light;
its top, dark, with the stack of the slow learner.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from unisono.data import synthesise

ROOT = Path(__file__).parents[1]
_CYCLE_S = 0.1
_SHORT_PATHS = r"""() => {
  const pre = document.querySelector("#stack pre");
  const folders = /File "[^"]*[/](?:site-packages|src|python3[.][0-9]+)[/]/g;
  pre.textContent = pre.textContent.replace(folders, 'File "');
}"""
"""For the picture: the folders of the machine that it was taken on are nobody's concern."""


class Slowed:
    """Stops a process for most of the time, so that it computes so many times slower."""

    def __init__(self, process: int, factor: float) -> None:
        self._process = process
        self._share = 1 / factor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Slowed:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with suppress(ProcessLookupError):
            while not self._over.wait(self._share * _CYCLE_S):
                os.kill(self._process, signal.SIGSTOP)
                self._over.wait((1 - self._share) * _CYCLE_S)
                os.kill(self._process, signal.SIGCONT)


def learner_processes(parent: int) -> dict[int, int]:
    """The processes of the learners that a process has started, by number."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            environment = (folder / "environ").read_bytes().split(b"\0")
            for entry in environment:
                if int(after_name[1]) == parent and entry.startswith(b"UNISONO_LEARNER="):
                    found[int(entry.partition(b"=")[2])] = int(folder.name)
    return found


@contextmanager
def watched_run(folder: Path, learners: int, *options: str) -> Iterator[tuple[int, str]]:
    """Trains with ``--watch`` inside; yields the process and the page's address."""
    prep = folder / "prep"
    synthesise(
        prep,
        speakers=20,
        utterances_per_speaker=20,
        frames_per_utterance=400,
        states=200,
        dimension=40,
        seed=0,
        noise=2.0,
    )
    command = [sys.executable, "-m", "unisono", "train", str(prep), "--out", str(folder / "run")]
    command += ["--learners", str(learners), "--watch", "--epochs", "500", "--set", "threads=1"]
    command += ["--set", "network.hidden=[256,256]", *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("watch at "):
                    yield process.pid, line.split()[-1]
                    break
            else:
                raise RuntimeError("the run has ended without its page")
        finally:
            process.terminate()
            process.communicate()


@contextmanager
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        try:
            yield chromium
        finally:
            chromium.close()


def open_page(chromium: Any, url: str, *, dark: bool = False, height: int = 900) -> Any:
    """The page, once the learners are on it."""
    scheme = "dark" if dark else "light"
    page = chromium.new_page(viewport={"width": 1280, "height": height}, color_scheme=scheme)
    page.goto(url)
    page.wait_for_selector(".card", timeout=120_000)
    return page


def wait_for_text(page: Any, selector: str, text: str, seconds: float) -> float:
    """Waits until an element holds a text; returns how long that took."""
    began = time.monotonic()
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)",
        arg=[selector, text],
        timeout=1000 * seconds,
    )
    return time.monotonic() - began


def shrink(picture: Path) -> None:
    """Makes a picture of 256 colours of it, where Pillow is installed: a third of the bytes."""
    with suppress(ImportError):
        image = importlib.import_module("PIL.Image")
        few = image.open(picture).convert("RGB").quantize(256, image.Quantize.MAXCOVERAGE)
        few.save(picture, optimize=True)


def main() -> None:
    """Takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="a folder")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        browser() as chromium,
        watched_run(Path(folder), 4) as (process, url),
    ):
        page = open_page(chromium, url)
        wait_for_text(page, "#verdict", "No learner is slow", 120)
        page.wait_for_timeout(15_000)
        os.kill(learner_processes(process)[1], signal.SIGKILL)
        wait_for_text(page, "#log", "learner 1 was lost", 30)
        wait_for_text(page, "#log", "learner 4 joined", 120)
        with Slowed(learner_processes(process)[2], 5):
            seconds = wait_for_text(page, "#slow", "Slowest: learner 2", 60)
            print(f"named after {seconds:.1f} s")
            page.wait_for_timeout(12_000)
            page.screenshot(path=options.out / "watch.png", full_page=True)
            dark = open_page(chromium, url, dark=True, height=760)
            dark.click('.card[data-learner="2"] [data-action=stack]')
            wait_for_text(dark, "#answer", "stacks of learner 2", 30)
            dark.evaluate(_SHORT_PATHS)
            dark.evaluate("window.scrollTo(0, 0)")
            dark.screenshot(path=options.out / "watch_dark.png")
    for name in ("watch.png", "watch_dark.png"):
        shrink(options.out / name)
        print(f"wrote {options.out / name}")


if __name__ == "__main__":
    main()
