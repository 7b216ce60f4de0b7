"""Python blocks of the documentation that are marked as runnable do run.

A line ``<!-- runnable -->`` marks the block after it. The blocks of a page are run in order, in
one namespace, as a reader would type them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^<!-- runnable -->\n```python\n(.*?)^```$", re.M | re.S)


def _blocks(page: Path) -> list[tuple[int, str]]:
    """The runnable blocks of a page, each with the line that it starts on."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(1)].count("\n"), m[1]) for m in _BLOCK.finditer(text)]


PAGES = [page for page in sorted(DOCS.rglob("*.md")) if _blocks(page)]


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Toy models gain nothing by more threads, and tests run beside others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_runnable_blocks_run(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, block in _blocks(page):
        # Empty lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * line + block, str(page), "exec"), namespace)


def test_every_marked_block_is_found() -> None:
    """A mark that is not directly in front of a Python block would silently do nothing."""
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- runnable -->") == len(_blocks(page)), page


def test_tutorials_with_python_are_run() -> None:
    names = {page.name for page in PAGES}
    assert {"own_loop.md", "kill_a_learner.md", "write_a_strategy.md", "add_a_model.md"} <= names
