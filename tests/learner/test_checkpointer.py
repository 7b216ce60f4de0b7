"""Checkpoints on the disk: whole or not at all, whatever the disk does."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import unisono
from support.disks import small_disk
from support.loops import BATCH, alone, dataset, flat, loss_of, network, sgd, simulated
from unisono.fabric import TensorVector
from unisono.learner import checkpoint_files
from unisono.learner.checkpoint_files import (
    FORMAT,
    NotWrittenError,
    check,
    checkpoints,
    commit,
    read_part,
    read_pool,
    remove_torn,
    write_part,
)
from unisono.learner.state_codec import decode, encode, from_bundle, to_bundle

POOL = {"committed": [[0, 4]], "sync_round": 4}


def state(value: float = 1.0) -> dict[str, Any]:
    return {"model": {"w": torch.full((3, 2), value)}, "extra_state": {"n": [1, (2.5, None)]}}


def write(directory: Path, sync_round: int, keep: int = 2, value: float = 1.0) -> None:
    folder = write_part(directory, sync_round, 0, state(value))
    commit(folder, {**POOL, "sync_round": sync_round + 1}, keep)


def trained(directory: Path, *, resume: bool = False, epochs: int = 1, **options: Any) -> nn.Module:
    model = network()
    settings = {"checkpoint_every": 4 * BATCH, **options}
    with unisono.Learner(
        model, sgd(model), checkpoints=directory, resume=resume, **settings
    ) as learner:
        for batch in learner.draw(dataset(), epochs, batch_size=BATCH):
            learner.step(loss_of(model, batch))
    return model


# The directory.


def test_a_checkpoint_is_seen_when_it_is_whole(tmp_path: Path) -> None:
    first = write_part(tmp_path, 7, 0, state(1.0))
    second = write_part(tmp_path, 7, 1, state(2.0))
    assert first == second and checkpoints(tmp_path) == []
    commit(first, POOL, keep=2)
    (folder,) = checkpoints(tmp_path)
    assert folder.name == "00000007" and not first.exists()
    assert read_pool(folder) == {"format": FORMAT, **POOL}
    assert sorted(p.name for p in folder.iterdir()) == ["SHA256SUMS", *check(folder)]
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True)
    assert checked.returncode == 0 and checked.stdout.count(b": OK") == 5
    for number, value in [(0, 1.0), (1, 2.0), (5, 1.0)]:
        part = read_part(folder, number)
        assert torch.equal(part["model"]["w"], torch.full((3, 2), value))
        assert part["extra_state"] == {"n": [1, (2.5, None)]}


def test_parts_are_taken_in_order_where_numbers_are_missing(tmp_path: Path) -> None:
    for number in (0, 4, 12):
        folder = write_part(tmp_path, 7, number, state(float(number)))
    commit(folder, POOL, keep=2)
    (folder,) = checkpoints(tmp_path)
    found = [float(read_part(folder, number)["model"]["w"][0, 0]) for number in range(4)]
    assert found == [0.0, 4.0, 12.0, 0.0]


def test_servers_have_parts_of_their_own(tmp_path: Path) -> None:
    """By their place among the servers; numbers of learners and servers never meet."""
    for number, role in [(0, "learner"), (3, "server"), (4, "learner"), (10, "server")]:
        folder = write_part(tmp_path, 7, number, state(float(number)), role)
    commit(folder, POOL, keep=2)
    (folder,) = checkpoints(tmp_path)
    check(folder)

    def found(role: str) -> list[float]:
        parts = [read_part(folder, place, role=role) for place in range(3)]
        return [float(part["model"]["w"][0, 0]) for part in parts]

    assert found("learner") == [0.0, 4.0, 0.0]
    assert found("server") == [3.0, 10.0, 3.0]


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for sync_round in (3, 10, 200):
        write(tmp_path, sync_round, keep=2)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["00000010", "00000200"]
    write(tmp_path, 201, keep=1)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["00000201"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000201"]


def test_what_is_torn_is_ignored_and_swept(tmp_path: Path) -> None:
    write(tmp_path, 3)
    torn = write_part(tmp_path, 9, 0, state())
    (torn / "learner-0.json").write_text('{"state": {"dict": [[')
    (tmp_path / "notes.txt").write_text("mine")
    assert [folder.name for folder in checkpoints(tmp_path)] == ["00000003"]
    remove_torn(tmp_path)
    assert not torn.exists() and (tmp_path / "notes.txt").exists()


def test_what_was_given_up_makes_room_for_the_next(tmp_path: Path) -> None:
    older, newer = write_part(tmp_path, 3, 0, state()), write_part(tmp_path, 12, 0, state())
    write(tmp_path, 9)
    assert not older.exists() and newer.exists()
    assert [folder.name for folder in checkpoints(tmp_path)] == ["00000009"]


def test_it_can_be_read_without_this_code(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    write(tmp_path, 3, value=2.5)
    (folder,) = checkpoints(tmp_path)
    names = json.loads((folder / "learner-0.json").read_text())["tensors"]
    tensors = load_file(folder / "learner-0.safetensors")
    assert np.array_equal(tensors[str(names.index(".model.w"))], np.full((3, 2), 2.5))


# A full disk.


def test_no_room_for_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 3)
    write_part(tmp_path, 9, 1, state())

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_files, "save_file", full)
    with pytest.raises(NotWrittenError, match=r"^No space left on device$"):
        write_part(tmp_path, 9, 0, state())
    assert torch.equal(read_part(checkpoints(tmp_path)[-1], 0)["model"]["w"], torch.ones(3, 2))
    assert sorted(p.name for p in (tmp_path / "00000009.tmp").iterdir()) == [
        "learner-1.json",
        "learner-1.safetensors",
        "learner-1.sha256",
    ]


def test_no_room_to_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on; what was there before stays."""
    write(tmp_path, 3)
    folder = write_part(tmp_path, 9, 0, state())

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_files, "_write", full)
    commit(folder, POOL, keep=1)
    (line,) = caplog.messages
    assert line == (
        f"unisono: checkpoint {tmp_path / '00000009'} could not be written (No space left on "
        "device); earlier ones stay, and training goes on"
    )
    assert [f.name for f in checkpoints(tmp_path)] == ["00000003"]
    assert not folder.exists()


def test_a_run_outlives_a_failed_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fine, calls = checkpoint_files._write, []

    def sometimes(path: Path, text: str) -> None:
        if path.name == checkpoint_files.POOL:
            calls.append(path)
            if len(calls) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fine(path, text)

    monkeypatch.setattr(checkpoint_files, "_write", sometimes)
    trained(tmp_path, keep=5)
    assert len(calls) == 3 and len(checkpoints(tmp_path)) == 2


def test_a_disk_that_is_really_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on, the checkpoints before stay, and the next ones come when there is room."""
    with small_disk("256k") as disk:
        whole = trained(disk / "checkpoints", keep=1)
        kept = read_pool(checkpoints(disk / "checkpoints")[-1])
        assert kept["committed"] == [[0, 12]]
        (disk / "filler").write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))

        goes_on = network()
        with unisono.Learner(
            goes_on,
            sgd(goes_on),
            checkpoints=disk / "checkpoints",
            checkpoint_every=4 * BATCH,
            keep=1,
            resume=True,
        ) as learner:
            steps = 0
            for batch in learner.draw(dataset(), epochs=2, batch_size=BATCH):
                learner.step(loss_of(goes_on, batch))
                steps += 1
                if steps == 6:
                    assert read_pool(checkpoints(disk / "checkpoints")[-1]) == kept
                    (disk / "filler").unlink()
        assert steps == 14
        assert read_pool(checkpoints(disk / "checkpoints")[-1])["committed"] == [[0, 24]]
        (line,) = [message for message in caplog.messages if "No space left" in message]
        assert re.search("00000015 could not be written .learner 0: .*; earlier ones stay", line)
        again = trained(disk / "checkpoints", keep=1, epochs=2, resume=True)
        assert torch.equal(flat(again), flat(goes_on)) and not torch.equal(flat(again), flat(whole))


# What a learner makes of it.


def test_how_many_and_how_often(tmp_path: Path) -> None:
    trained(tmp_path / "a", keep=3, checkpoint_every=1)
    assert [f.name for f in checkpoints(tmp_path / "a")] == ["00000010", "00000011", "00000012"]
    trained(tmp_path / "b", keep=9, checkpoint_every=5 * BATCH)
    pools = [read_pool(f)["committed"] for f in checkpoints(tmp_path / "b")]
    assert pools == [[[0, 5]], [[0, 10]]]
    trained(tmp_path / "c", checkpoint_every=0)
    assert [read_pool(f)["committed"] for f in checkpoints(tmp_path / "c")] == [[[0, 13]]]


def test_a_new_run_does_not_touch_the_checkpoints_of_another(tmp_path: Path) -> None:
    trained(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(unisono.UserError, match="resume=True, or choose another directory"):
        trained(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_late_learner_is_not_taken_for_a_new_run(tmp_path: Path) -> None:
    """It finds checkpoints, and they are those of the run that it joins."""
    from unisono.simulation import Join, run_loops

    def loop() -> None:
        model = network()
        strategy = unisono.Averaging(every=2 * BATCH, sharding=unisono.Sharding.STATIC)
        with unisono.Learner(
            model, sgd(model), strategy, checkpoints=tmp_path, checkpoint_every=2 * BATCH
        ) as learner:
            for batch in learner.draw(dataset(), epochs=3, batch_size=BATCH):
                learner.step(loss_of(model, batch))

    run = run_loops(loop, learners=2, faults=[Join(9.0, 2)])
    assert run.state.joined == 3 and run.state.pool.over


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seed": 1}, "made with data 104 examples.*seed 0, and this is .*seed 1"),
        ({"strategy": "allreduce"}, "made with strategy"),
        ({"extra_state": {"scheduler": "make"}}, "holds no 'scheduler'"),
    ],
)
def test_another_run_cannot_go_on(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    trained(tmp_path)
    if "extra_state" in options:
        options = {"extra_state": {"scheduler": lr_scheduler.StepLR(sgd(network()), 3)}}
    with pytest.raises(unisono.UserError, match=match):
        trained(tmp_path, resume=True, **options)


def test_another_model_cannot_go_on(tmp_path: Path) -> None:
    trained(tmp_path)
    model = nn.Sequential(network(), nn.Linear(3, 3))

    def loop() -> None:
        with unisono.Learner(model, sgd(model), checkpoints=tmp_path, resume=True) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.step(loss_of(model, batch))

    with pytest.raises(unisono.UserError, match="was made with model"):
        alone(loop)


def test_resume_without_a_checkpoint_begins(tmp_path: Path) -> None:
    model = trained(tmp_path / "new", resume=True)
    assert torch.equal(flat(model), flat(trained(tmp_path / "other")))


class Odd:
    """Keeps what cannot be kept."""

    def state_dict(self) -> dict[str, Any]:
        return {"fine": 1, "deep": [{"file": object()}]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("thing", "match"),
    [
        (object(), "no state_dict"),
        (Odd(), r"extra_state\['thing'\]: .deep.0.file is of type object"),
    ],
)
def test_what_cannot_be_kept_is_told_at_the_start(thing: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(unisono.UserError, match=match) as caught:
        trained(tmp_path, extra_state={"thing": thing})
    assert "\n" not in str(caught.value)
    assert checkpoints(tmp_path) == []


def test_one_learner_that_cannot_write_its_part_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on; that checkpoint is given up, told once, and the next one is whole."""
    fine = checkpoint_files.save_file

    def sometimes(tensors: Any, path: Path) -> None:
        if "0000000" in str(path) and int(path.parent.stem) < 5 and path.stem == "learner-1":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fine(tensors, path)

    monkeypatch.setattr(checkpoint_files, "save_file", sometimes)
    ran = simulated(lambda: trained(tmp_path, strategy="allreduce", keep=9) and None, 2)
    assert ran.state.pool.over
    assert [f.name for f in tmp_path.iterdir()] == ["00000005"]
    assert check(tmp_path / "00000005")
    told = [m for m in caplog.messages if "could not be written" in m]
    assert len(told) == 2 and all("(learner 1: No space left on device)" in m for m in told)


# The code of nested state.


def test_code_and_back() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    loss_of(model, dataset()[:8]).backward()
    optimizer.step()
    states = {
        "optimizer": optimizer.state_dict(),
        "steps": lr_scheduler.MultiStepLR(optimizer, [3, 3, 5]).state_dict(),
        "cycle": lr_scheduler.OneCycleLR(sgd(model), 0.1, 10).state_dict(),
        "plateau": lr_scheduler.ReduceLROnPlateau(sgd(model)).state_dict(),
        "lambda": lr_scheduler.LambdaLR(sgd(model), lambda step: 0.1).state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "numbers": {"a": np.float64(1.5), "b": np.int64(3), "c": np.bool_(True), 7: float("inf")},
        "empty": {},
    }
    tensors: dict[str, torch.Tensor] = {}
    plain = json.loads(json.dumps(encode(states, tensors)))
    back = decode(plain, tensors)
    assert str(back) == str(decode(encode(states, {}), tensors))
    assert isinstance(back["steps"]["milestones"], Counter)
    assert back["numbers"] == {"a": 1.5, "b": 3, "c": True, 7: float("inf")}
    assert back["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    fresh = torch.optim.AdamW(network().parameters(), lr=0.1)
    fresh.load_state_dict(back["optimizer"])


def test_names_of_tensors_do_not_collide() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    state = {"a": {"b.c": one}, "a.b": {"c": two}}
    tensors: dict[str, torch.Tensor] = {}
    back = decode(encode(state, tensors), tensors)
    assert torch.equal(back["a"]["b.c"], one) and torch.equal(back["a.b"]["c"], two)


def test_state_of_many_tensors_travels() -> None:
    """Its description alone is longer than a message may be."""
    state = [
        {
            "param_groups": [],
            "state": {i: {"exp_avg": torch.full((), float(i))} for i in range(5000)},
        }
    ]
    bundle = to_bundle("optimizers", state)
    assert len(json.dumps(bundle.plain)) < 1000
    assert all(isinstance(vector, TensorVector) for vector in bundle.vectors.values())
    back = from_bundle("optimizers", bundle)
    assert float(back[0]["state"][4321]["exp_avg"]) == 4321.0
    assert back[0]["state"][0]["exp_avg"].shape == ()
