"""Transducers in files: what is written is what OpenFst reads, and the other way round."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from unisono.speech.graph.fst import Fst

kaldifst = pytest.importorskip("kaldifst", reason="the speech extra is not installed")


def test_openfst_reads_what_is_written(tmp_path: Path) -> None:
    arcs = [(0, 1, 1, 5, 0.5), (2, 0, 0, 7, 1.5), (0, 2, 2, 0, 0.25), (1, 1, 3, 0, -2.0)]
    machine = Fst.of(arcs, [math.inf, 0.75, math.inf], start=2)
    machine.write(tmp_path / "a.fst")
    fst = kaldifst.StdVectorFst.read(str(tmp_path / "a.fst"))
    assert fst.start == 2 and fst.num_states == 3
    seen = {
        (state, arc.nextstate, arc.ilabel, arc.olabel, arc.weight.value)
        for state in range(3)
        for arc in kaldifst.ArcIterator(fst, state)
    }
    assert seen == set(arcs)
    assert [fst.final(state).value for state in range(3)] == [math.inf, 0.75, math.inf]
    fst.write(str(tmp_path / "b.fst"))
    again = Fst.read(tmp_path / "b.fst")
    assert again.start == 2
    np.testing.assert_array_equal(again.final, machine.final)
    columns = (again.source, again.target, again.input, again.output, again.weight)
    assert {tuple(map(float, row)) for row in zip(*columns, strict=True)} == set(arcs)
