"""Whatever a disk does to a checkpoint, a run goes on from the newest one that is whole."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from support.loops import BATCH, dataset, flat, loss_of, network, sgd, simulated
from unisono.learner import checkpoint_files
from unisono.learner.checkpoint_files import FORMAT, SUMS, checkpoints, load, read_pool
from unisono.learner.checkpointer import KEYS

FILES = ["learner-0.json", "learner-0.safetensors", "pool.json", SUMS]


def trained(directory: Path, *, resume: bool = False, **options: Any) -> nn.Module:
    model = network()
    optimizer = options.pop("optimizer", sgd)(model)
    settings = {"checkpoint_every": 4 * BATCH, "keep": 9, **options}
    with unisono.Learner(
        model, optimizer, checkpoints=directory, resume=resume, **settings
    ) as learner:
        for batch in learner.draw(dataset(), batch_size=BATCH):
            learner.step(loss_of(model, batch))
    return model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """Three checkpoints, and the model of the run that made them."""
    folder = tmp_path_factory.mktemp("whole") / "checkpoints"
    model = trained(folder)
    assert [read_pool(f)["committed"] for f in checkpoints(folder)] == [
        [[0, n]] for n in (4, 8, 12)
    ]
    return folder, flat(model)


# What may happen to a file.


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(1, path.stat().st_size))


def empty(path: Path, chance: random.Random) -> None:
    os.truncate(path, 0)


def remove(path: Path, chance: random.Random) -> None:
    path.unlink()


def other_keys(path: Path, chance: random.Random) -> None:
    """A key has another name, and the checksums are right: somebody has written it so."""
    if path.suffix == ".json":
        text = path.read_text()
        keys = ["state", "tensors", "about", "model", "optimizers", "random", "strategy"]
        keys = ["format", "committed", "sync_round"] if path.name == "pool.json" else keys
        path.write_text(text.replace(f'"{chance.choice(keys)}"', '"other"'))
        sums = path.parent / SUMS
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sums.write_text(re.sub(rf"\w{{64}}(?=  {path.name})", digest, sums.read_text()))
    else:
        data = path.read_bytes()
        path.write_bytes(data.replace(b"F32", b"F64").replace(b"learner", b"other"))


MUTATIONS = [flip, truncate, empty, remove, other_keys]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("mutate", MUTATIONS)
def test_the_newest_whole_one_is_used(
    mutate: Callable[[Path, random.Random], None],
    name: str,
    seed: int,
    whole: tuple[Path, torch.Tensor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """100 of them; the run ends with the bytes of the one that was not interrupted."""
    made, end = whole
    shutil.copytree(made, tmp_path / "checkpoints")
    folders = checkpoints(tmp_path / "checkpoints")
    mutate(folders[-1] / name, random.Random(f"{mutate.__name__} {name} {seed}"))
    loaded = load(tmp_path / "checkpoints", 0, KEYS)
    assert loaded is not None and loaded.folder == folders[-2]
    assert torch.equal(flat(trained(tmp_path / "checkpoints", resume=True)), end)
    (line,) = caplog.messages
    assert re.fullmatch(
        rf"unisono: checkpoint {folders[-1].name} \([^()\n]+\) was passed over, "
        rf"going on from {folders[-2].name}",
        line,
    )
    assert folders[-1].with_suffix(".damaged").is_dir()
    assert checkpoint_files.check(folders[-1])  # made anew


@pytest.mark.parametrize("name", ["learner-0.json", "learner-1.safetensors"])
def test_all_learners_use_the_same_one(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those whose own part is whole; it is told once."""
    ends: dict[str, list[torch.Tensor]] = {"first": [], "second": []}

    def loop(which: str, *, resume: bool) -> None:
        strategy = unisono.Averaging(every=2 * BATCH, sharding=unisono.Sharding.STATIC)
        model = trained(tmp_path, strategy=strategy, resume=resume)
        ends[which].append(flat(model))

    simulated(lambda: loop("first", resume=False), 2)
    last = checkpoints(tmp_path)[-1]
    flip(last / name, random.Random(0))
    ran = simulated(lambda: loop("second", resume=True), 2)
    assert ran.state.pool.over and ran.counts.committed == 13 - 8
    assert all(torch.equal(ends["first"][0], end) for end in ends["second"])
    assert sum("was passed over" in message for message in caplog.messages) == 1


def test_none_is_whole(whole: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    shutil.copytree(whole[0], tmp_path / "checkpoints")
    for folder in checkpoints(tmp_path / "checkpoints"):
        (folder / "learner-0.safetensors").unlink()
    with pytest.raises(unisono.UserError, match="put one back from a copy, or begin") as caught:
        trained(tmp_path / "checkpoints", resume=True)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("learner-0.safetensors is missing") == 3


def test_one_of_a_run_that_goes_on_may_vanish(
    whole: tuple[Path, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that joins late reads while others commit and remove: nothing is damaged then."""
    shutil.copytree(whole[0], tmp_path / "checkpoints")
    folders, read = checkpoints(tmp_path / "checkpoints"), checkpoint_files.check

    def slowly(folder: Path) -> list[str]:
        shutil.rmtree(folders[-1], ignore_errors=True)
        return read(folder)

    monkeypatch.setattr(checkpoint_files, "check", slowly)
    loaded = load(tmp_path / "checkpoints", 0)
    assert loaded is not None and loaded.folder == folders[-2] and loaded.passed_over == []


# What made it.


def rewrite(folder: Path, name: str, change: Callable[[str], str]) -> None:
    path, sums = folder / name, folder / SUMS
    path.write_text(change(path.read_text()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    sums.write_text(re.sub(rf"\w{{64}}(?=  {name})", digest, sums.read_text()))


@pytest.mark.parametrize(
    "committed",
    ["[[-3, 4]]", "[[4, 2]]", "[[0, 4], [2, 6]]", "[[0, Infinity]]", "[[0, 4, 8]]", "[0, 4]"],
)
def test_a_pool_that_no_run_has_is_passed_over(
    committed: str, whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    shutil.copytree(whole[0], tmp_path / "checkpoints")
    folders = checkpoints(tmp_path / "checkpoints")
    rewrite(folders[-1], "pool.json", lambda t: t.replace("[[0, 12]]", committed))
    loaded = load(tmp_path / "checkpoints", 0, KEYS)
    assert loaded is not None and loaded.folder == folders[-2]


def test_another_format_is_refused(whole: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    shutil.copytree(whole[0], tmp_path / "checkpoints")
    last = checkpoints(tmp_path / "checkpoints")[-1]
    rewrite(last, "pool.json", lambda t: json.dumps({**json.loads(t), "format": FORMAT + 1}))
    with pytest.raises(
        unisono.UserError, match=f"has format {FORMAT + 1} .* reads format {FORMAT}"
    ):
        trained(tmp_path / "checkpoints", resume=True)


@pytest.mark.parametrize(
    ("version", "match"),
    [
        (torch.__version__, "was made with torch 9.9, and this is unisono .*: the same bytes are"),
        (unisono.__version__, "was made with unisono 9.9, and this is unisono"),
    ],
)
def test_other_versions_are_told(
    version: str,
    match: str,
    whole: tuple[Path, torch.Tensor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copytree(whole[0], tmp_path / "checkpoints")
    last = checkpoints(tmp_path / "checkpoints")[-1]
    rewrite(last, "learner-0.json", lambda t: t.replace(f'"{version}"', '"9.9"'))
    trained(tmp_path / "checkpoints", resume=True)
    (line,) = caplog.messages
    assert re.search(match, line)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"optimizer": adamw}, "made with optimizer SGD, and this is AdamW: resume with the same"),
        (
            {"optimizer": lambda m: [sgd(m), sgd(m)]},
            "made with optimizer SGD, and this is SGD, SGD",
        ),
        ({"optimizer": grouped}, "does not fit the optimizer of this run .ValueError: .*different"),
    ],
)
def test_another_optimizer_is_refused(
    options: dict[str, Any], match: str, whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    shutil.copytree(whole[0], tmp_path / "checkpoints")
    with pytest.raises(unisono.UserError, match=match) as caught:
        trained(tmp_path / "checkpoints", resume=True, **options)
    assert "\n" not in str(caught.value)
