"""The assets that a run copies from its PREP, so that it can be decoded without it."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unisono.data import FrameSource, Part, Prep
from unisono.errors import UserError
from unisono.pool.order import Order
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.speech.decoding.assets import (
    ASSETS_FOLDER,
    PRIORS_FILE,
    TUNING_SET_FILE,
    DecodingAssets,
)
from unisono.training.acoustic_scorer import TrainedNetwork, read_priors

_FRAMES = 100_000


def save_decoding_assets(run: RunDirectory, prep: Prep) -> None:
    """Copies what decoding needs into a run, and writes the states' priors.

    The prior of a state is the mean of its posteriors over training utterances chosen at random:
    the network's own average is divided out, not the counts of the alignment. A PREP that was not
    made from speech has no such assets.
    """
    source: Path = prep.path / ASSETS_FOLDER
    if not source.is_dir():
        return
    target = run.path / ASSETS_FOLDER
    try:
        shutil.copytree(source, target, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise UserError(f"cannot copy {source} to {target}: {error}") from None
    if not prep.frames_of(Part.HELDOUT):
        # The held-out speakers were trained on, so nothing can be tuned on them.
        replace(DecodingAssets.read(run.path), tuning_set=None).write(target)
        (target / TUNING_SET_FILE).unlink(missing_ok=True)
    network = TrainedNetwork(run)
    if network.is_ctc:  # the blank has most of the mean: nothing is divided out
        return
    buffer = io.BytesIO()
    np.save(buffer, _compute_log_priors(network, prep))
    write_atomically(target / PRIORS_FILE, buffer.getvalue())


def log_priors(run: RunDirectory, network: TrainedNetwork) -> NDArray[np.float32]:
    """The log priors of the states of a run, computed where its PREP was not made from speech.

    Raises:
        UserError: They cannot be read, or the PREP is needed and is not what it was.
    """
    file = run.path / ASSETS_FOLDER / PRIORS_FILE
    if file.parent.is_dir():
        return read_priors(file)
    prep = Prep.open(Path(run.read_config().prep))
    if json.loads(run.model_description.read_text(encoding="utf-8"))["prep"] != prep.fingerprint:
        raise UserError(f"{prep.path} is not the PREP that {run.path} was trained on any more")
    return _compute_log_priors(network, prep)


def _compute_log_priors(network: TrainedNetwork, prep: Prep) -> NDArray[np.float32]:
    threads = torch.get_num_threads()
    # One thread: utterances are short, and on a busy machine threads that synchronise at every
    # layer take many times as long.
    torch.set_num_threads(1)
    means = np.maximum(_mean_posteriors(network, prep), 1 / prep.frames_of(Part.TRAIN))
    torch.set_num_threads(threads)
    return np.log(means).astype(np.float32)


def _mean_posteriors(network: TrainedNetwork, prep: Prep) -> NDArray[np.float64]:
    """The posterior of each state, averaged over training utterances in random order."""
    train = FrameSource(prep, Part.TRAIN, context=0)
    total, frames = np.zeros(prep.header.states), 0
    for utterance in Order(len(train.utterances), seed=0).indices(0, 0, len(train.utterances)):
        posteriors = np.exp(network.log_posteriors(train.whole(int(utterance))[0].numpy()))
        total += posteriors.sum(0, dtype=np.float64)
        frames += len(posteriors)
        if frames >= _FRAMES:
            break
    return total / frames
