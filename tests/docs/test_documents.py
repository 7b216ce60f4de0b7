"""Commands, keys and links that the documents name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from unisono.cli.app import app
from unisono.config import Config, load
from unisono.errors import UserError
from unisono.strategies.registry import make, names

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def _by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _command_lines(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Every ``unisono COMMAND ...`` in the fenced blocks of a page, comments cut off."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"^```(?:bash|text)?\n(.*?)^```$", text, re.M | re.S):
        for line in block.splitlines():
            found = re.search(r"(?:^|\s|-m )unisono ([a-z]+)(.*)", line.split("  #")[0])
            if found:
                yield found[1], found[2].split()


@pytest.mark.parametrize("page", PAGES, ids=_by_name)
def test_commands_and_options_exist(page: Path) -> None:
    for name, words in _command_lines(page):
        assert name in _COMMANDS, f"{page}: unisono {name}"
        known = {option for p in _COMMANDS[name].params for option in p.opts}
        for word in words:
            if word.endswith(".py"):
                break  # what follows belongs to the user's script
            if word.startswith("--"):
                assert word.strip("'").split("=")[0] in known, f"{page}: unisono {name} {word}"


@pytest.mark.parametrize("page", PAGES, ids=_by_name)
def test_keys_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # names keys as they were
    text = page.read_text(encoding="utf-8")
    for key, value in re.findall(r"--set '?([a-z_.]+)=([^\s'`)]+)", text):
        if key.startswith("strategy."):
            option = key.removeprefix("strategy.")
            if option != "name" and option not in _OWN_STRATEGY:
                assert any(_has_option(name, option) for name in names()), f"{page}: {key}"
        elif key != "key" and not value.isupper():
            load(None, [f"{key}={value}"], {})


_OWN_STRATEGY = {"pull"}
"""Options of the strategy that a tutorial writes."""


def _has_option(strategy: str, option: str) -> bool:
    try:
        make(strategy, {option: object()})
    except UserError as error:
        return "has no option" not in str(error)
    return True


@pytest.mark.parametrize("page", PAGES, ids=_by_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http", "#")):
            assert (page.parent / target.split("#")[0]).exists(), f"{page}: {target}"


_TABLES = {
    name: set(type(table).model_fields)
    for name in Config.model_fields
    if isinstance(table := getattr(Config(), name), BaseModel)
}


@pytest.mark.parametrize("page", PAGES, ids=_by_name)
def test_keys_in_the_text_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # names keys as they were
    text = page.read_text(encoding="utf-8")
    for table, key in re.findall(rf"`({'|'.join(_TABLES)})\.([a-z_]+)", text):
        assert key in _TABLES[table], f"{page}: {table}.{key}"


@pytest.mark.parametrize("page", PAGES, ids=_by_name)
def test_source_files_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return
    roots = (ROOT, ROOT / "src" / "unisono", ROOT / "src" / "unisono" / "strategies")
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", page.read_text(encoding="utf-8")):
        assert any((root / name).exists() for root in roots), f"{page}: {name}"


def test_classes_of_the_glossary_exist() -> None:
    defined = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    table = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    classes = re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", table.partition("## Classes")[2])
    assert len(classes) > 10
    assert set(classes) <= defined
