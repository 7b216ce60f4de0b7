"""What every fabric does: one suite, for all of them.

A fabric's author writes a set-up (see ``support.fabrics``) that brings the players of a
``Case`` on, and runs every case that the set-up is able to stage::

    for case in cases(setup.abilities):
        setup.run(case)

The cases are plain blocking code on ``Fabric``, like everything that the fabrics are made for.
"""

from __future__ import annotations

from collections.abc import Iterable

from support.conformance import deaths, lifecycle, messages
from support.conformance.stage import CASES, Ability, Case, Stage, case

__all__ = ["Ability", "Case", "Stage", "case", "cases", "deaths", "lifecycle", "messages"]


def cases(abilities: Iterable[Ability]) -> list[Case]:
    """The cases that a set-up with these abilities can stage."""
    able = frozenset(abilities)
    return [c for c in CASES if c.needs <= able]
