"""The word errors in the report: of what was decoded into folders of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """What came of decoding some speech.

    Attributes:
        name: The folder in the run.
        wer: Word errors a word.
        interval: 95% of it.
        cer: Character errors a character.
        words: The words that were said.
        errors: Insertions, deletions, substitutions.
    """

    name: str
    wer: float
    interval: tuple[float, float]
    cer: float
    words: int
    errors: tuple[int, int, int]


def read_decoded(run: Path) -> list[Decoded]:
    """Reads the scores in a run's folders; what has none, or a broken one, is left out."""
    found = []
    for file in sorted(run.glob("*/score.json")):
        with suppress(OSError, ValueError, LookupError, TypeError, ArithmeticError):
            found.append(_decoded(file.parent.name, json.loads(file.read_text(encoding="utf-8"))))
    return found


def _decoded(name: str, facts: dict[str, Any]) -> Decoded:
    low, high = (float(value) for value in facts["interval"])
    return Decoded(
        name=name,
        wer=float(facts["wer"]),
        interval=(low, high),
        cer=float(facts["cer"]),
        words=int(facts["words"]),
        errors=(int(facts["ins"]), int(facts["del"]), int(facts["sub"])),
    )


_HEADS = ("word errors", "95% between", "words", "inserted", "deleted", "substituted")


def words(runs: Sequence[tuple[str, Sequence[Decoded]]]) -> list[str]:
    """Returns the table of all that was decoded, of runs by their names; nothing if none was."""
    rows = []
    for run, decoded in runs:
        for each in decoded:
            low, high = each.interval
            cells = [
                f"{each.wer:.1%}",
                f"{low:.1%} and {high:.1%}",
                f"{each.words:,}",
                *(f"{count:,}" for count in each.errors),
                f"{each.cer:.1%}",
            ]
            names = "".join(f'<td class="text">{escape(name)}</td>' for name in (run, each.name))
            rows.append(f"<tr>{names}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    if not rows:
        return []
    head = "".join(f'<th class="text">{name}</th>' for name in ("run", "speech"))
    head += "".join(f"<th>{name}</th>" for name in (*_HEADS, "character errors"))
    body = f"<tr>{head}</tr>\n{''.join(rows)}".replace("%", " %")
    return ["<h2>Words</h2>", f'<div class="table"><table>{body}</table></div>']
