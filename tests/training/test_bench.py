"""The bench goes on when a way of training diverges; the ceiling."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unisono.config import Config, load
from unisono.errors import UserError
from unisono.training import bench
from unisono.training.bench import Bench, measure_ceiling
from unisono.training.bench_worker import BenchWorker

SMALL = ["threads=1", "network.hidden=[16]", "network.context=0"]


@pytest.mark.long
@pytest.mark.timeout(290)
def test_a_way_that_diverges_is_a_row_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = ["bare", "independent", "solo", "allreduce", "averaging-static", "ddp"]
    few = [way for way in bench.CONTENDERS if way.name in ways]
    monkeypatch.setattr(bench, "CONTENDERS", few)
    config = load(None, [*SMALL, "rate.start=1e30", "rate.max_change=0"], {})
    timed = Bench(
        learners=2, slow=1.0, seconds=0.5, turns=1, json=None, say=lambda line: None, config=config
    )
    rows = {line.split()[0]: line for line in timed.run()[2:8]}
    for name in ("solo", "allreduce", "averaging-static"):
        assert "diverged: learner" in rows[name] and "not finite" in rows[name]
    for name in ("bare", "independent", "ddp"):
        assert float(rows[name].split()[1]) >= 0.0


def test_rows_are_shown_though_their_file_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk has become full meanwhile, and the turns took long."""
    monkeypatch.setattr(Bench, "rows", lambda self: [])
    said: list[str] = []
    timed = Bench(
        learners=2, slow=1.0, seconds=0.5, turns=1, json=Path("/dev/full"), say=said.append
    )
    with pytest.raises(UserError, match="cannot write --json /dev/full: No space left on device"):
        timed.run()
    assert said[0].startswith("2 learners, ")


def test_the_ceiling_is_the_ratio_of_what_was_timed_in_the_same_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def timed(*arguments: object) -> bench.Samples:
        rates = {"bare": [10.0, 5.0, 20.0], "independent": [30.0, 10.0, 50.0]}
        return {name: [{"steps": rate} for rate in each] for name, each in rates.items()}

    monkeypatch.setattr(bench, "measure", timed)
    found = measure_ceiling(Config(), 4)
    assert (found.learners, found.ratio, found.low, found.high) == (4, 2.5, 2.0, 3.0)
    assert (found.alone_per_s, found.together_per_s) == (10.0, 30.0)
    assert "4 independent processes make 30.0 minibatches a second, one 10.0" in found.line()


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_it_computes_in_the_precision_of_train(prep: Path, precision: str) -> None:
    config = load(None, [*SMALL, f"precision={precision}", "device=cpu"], {"prep": str(prep)})
    worker = BenchWorker(config, number=0, learners=1, slow=1.0)
    model, seen = worker._build(), []
    model.register_forward_hook(lambda module, inputs, logits: seen.append(logits.dtype))
    worker._loss(model, *next(worker._minibatches()))
    assert seen == [getattr(torch, precision)]
