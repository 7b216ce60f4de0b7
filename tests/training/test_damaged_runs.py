"""Any damage to any file of a run: what reads it uses it, or says in one line what is wrong."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.mutations import damaged_bytes, damaged_json, damaged_text
from unisono.config import load
from unisono.data import synthesise
from unisono.errors import UserError
from unisono.report.report import write_report
from unisono.runs.directory import RunDirectory
from unisono.training.acoustic_scorer import TrainedNetwork
from unisono.training.calibrate import calibrate
from unisono.training.initial_model import read_initial
from unisono.training.train import train
from unisono.watch.feed import Feed
from unisono.watch.prometheus import exposition
from unisono.watch.snapshot import snapshot

SMALL = ["network.hidden=[8]", "minibatch=32", "checkpoint.every=64", "threads=1", "epochs=1"]
FILES = ["config.toml", "metrics.jsonl", "summary.json", "model.json", "model.safetensors"]
FILES += ["test/score.json", "initial.safetensors", "learners.txt"]
SCORE = {"wer": 0.1, "interval": [0.05, 0.2], "cer": 0.04, "words": 9, "ins": 1, "del": 1, "sub": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, beside its data."""
    folder = tmp_path_factory.mktemp("whole")
    synthesise(
        folder / "prep",
        speakers=3,
        utterances_per_speaker=2,
        frames_per_utterance=60,
        states=5,
        dimension=4,
        seed=0,
        noise=1.0,
    )
    train(load(None, SMALL, {"prep": str(folder / "prep")}), folder / "first")
    init = {"prep": str(folder / "prep"), "init": str(folder / "first")}
    train(load(None, SMALL, init), folder / "run")
    RunDirectory.open(folder / "run").write_wanted(1)
    (folder / "run" / "test").mkdir()
    (folder / "run" / "test" / "score.json").write_text(json.dumps(SCORE))
    return folder / "run"


def resume(run: Path) -> None:
    """As `unisono train --resume --out RUN`."""
    train(load(run / "config.toml", [], {}), run, resume=True)


def watch(run: Path) -> None:
    feed = Feed(RunDirectory.open(run))
    feed.refresh()
    json.dumps(snapshot(feed))
    exposition(snapshot(feed))


def start_from(run: Path) -> None:
    """As `--init RUN`."""
    settings = load(None, SMALL, {"prep": str(run.parent / "prep"), "init": str(run)})
    read_initial(settings)


def use_costs(run: Path) -> None:
    """As `unisono simulate --calibrate RUN`."""
    calibrate([run], load(None, SMALL, {}))


READERS: dict[str, Callable[[Path], Any]] = {
    "report": lambda run: write_report([run], run / "report.html"),
    "decode": lambda run: TrainedNetwork(RunDirectory.open(run)),
    "watch": watch,
    "init": start_from,
    "calibrate": use_costs,
    "learners": lambda run: RunDirectory.open(run).read_wanted(),
}


def damage(whole: Path, folder: Path, seed: int) -> Path:
    """A copy of a run with damage in one of its files; returns which."""
    draw = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole.parent, folder)
    file = folder / "run" / draw.choice(FILES)
    data = file.read_bytes()
    for _ in range(draw.choice((1, 1, 1, 3))):
        if file.suffix == ".safetensors":
            data = damaged_bytes(data or b"\0", draw)
        elif file.suffix in (".toml", ".txt") or draw.random() < 0.5:
            data = damaged_text(data, draw)
        else:
            data = damaged_json(data, draw)
    file.write_bytes(data)
    return file


def check(whole: Path, folder: Path, seed: int, readers: dict[str, Callable[[Path], Any]]) -> None:
    file = damage(whole, folder, seed)
    for name, read in readers.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                read(folder / "run")
        except UserError as error:
            assert "\n" not in str(error), (seed, name)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {name} with a damaged {file.name}") from error


def test_a_damaged_run_is_read_or_refused(whole: Path, tmp_path: Path) -> None:
    for seed in range(60):
        check(whole, tmp_path / "damaged", seed, READERS)


def test_a_damaged_run_is_resumed_or_refused(whole: Path, tmp_path: Path) -> None:
    for seed in range(8):
        check(whole, tmp_path / "damaged", seed, {"resume": resume})


def test_a_damaged_initial_model_is_named(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole.parent, tmp_path / "damaged")
    run = RunDirectory.open(tmp_path / "damaged" / "run")
    run.initial_model.write_bytes(run.initial_model.read_bytes()[:100])
    with pytest.raises(UserError, match=r"initial\.safetensors is damaged"):
        resume(run.path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_much_more_damage_to_runs(whole: Path, tmp_path: Path) -> None:
    for seed in range(1000, 1600):
        check(whole, tmp_path / "damaged", seed, READERS)
    for seed in range(1000, 1150):
        check(whole, tmp_path / "damaged", seed, {"resume": resume})
