"""Hooks of mkdocs: reference pages made from the code, and files that pages link to.

A line ``<!-- generated: NAME -->`` in a page is replaced by what that function of
``reference_pages`` returns. Links to ``benchmarks/results/`` and ``examples/`` work in the
repository and on the site, which gets copies of these files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import reference_pages  # noqa: E402

_COPIED = ("benchmarks/results", "examples")
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
_LINK = re.compile(r"\]\(\.\./((?:\.\./)*(?:benchmarks/results|examples)/)")
_GENERATORS = {
    "command_line": reference_pages.command_line,
    "configuration": reference_pages.configuration,
    "strategy_options": reference_pages.strategy_options,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files that pages link to."""
    for folder in _COPIED:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fills in what is generated, and points links at the site's own copies."""
    filled = _MARK.sub(lambda found: _GENERATORS[found[1]](), markdown)
    return _LINK.sub(r"](\1", filled)
