"""The package as an index has it: its wheel in an environment of its own, and its oldest Python."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import sysconfig
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_log_needs_nothing_newer_than_python_3_10() -> None:
    """There StreamHandler takes no type in brackets."""
    older = "import logging; del logging.StreamHandler.__class_getitem__; import unisono.verbosity"
    if sys.version_info < (3, 11):
        older = "import unisono.verbosity"
    subprocess.run([sys.executable, "-c", older], check=True, timeout=60)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip builds it, in an environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, timeout=200)
    if "No matching distribution found for hatch" in done.stderr:
        pytest.skip("no package index with hatchling")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What an index reads."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.long
def test_the_wheel_holds_all_files_of_the_package(wheel: Path) -> None:
    listed = ["git", "ls-files", "src/unisono"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, timeout=60)
    if found.returncode != 0:
        pytest.skip("not a checkout of git")
    tracked = {name.removeprefix("src/") for name in found.stdout.split()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"unisono/py.typed", "unisono/watch/page.js"} < tracked
    assert tracked <= packed
    assert all(name.startswith("unisono/") for name in packed)


@pytest.mark.long
def test_the_readme_of_the_index_has_no_links_into_the_repository(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str) and metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# Unisono\n") and "unisono train PREP" in text
    links = re.findall(r"\]\(([^)\s]+)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.long
def test_the_wheel_works_where_the_sources_are_not(
    wheel: Path, metadata: Message, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dependencies are those of this Python; a path in a .pth does not follow links in it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    programs = tmp_path / "venv" / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel]
    subprocess.run(install, check=True, timeout=120)
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def unisono(*arguments: str) -> str:
        command = [programs / "unisono", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert unisono("--version") == f"unisono {metadata['Version']}\n"
    assert "averaging" in unisono("train", "--help")
    assert "--out" in unisono("demo", "--help")
    code = "import unisono; print(unisono.__file__)"
    command = [programs / "python", "-c", code]
    where = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert where.stdout.startswith(str(site)), where.stderr
