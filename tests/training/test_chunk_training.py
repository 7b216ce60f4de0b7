"""TDNN, LSTM and BLSTM in a run; chunks of a PREP against its whole utterances."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.config import Config, load
from unisono.data import UNLABELLED, ChunkSource, Part, Prep
from unisono.errors import UserError
from unisono.models import build
from unisono.training.builders import augment_of, examples_in, shape_of, source_of, strategy_of
from unisono.training.train import train

QUICK = ["network.hidden=[32]", "network.left=6", "network.right=4", "network.bottleneck=16"]


def config(model: str, *sets: str) -> Config:
    return load(None, [*QUICK, "device=cpu", *sets], {"model": model})


@pytest.mark.parametrize("optimizer", ["sgd", "ng-sgd"])
@pytest.mark.parametrize("model", ["tdnn", "lstm", "blstm"])
def test_a_run_of_each_learns(model: str, optimizer: str, prep: Path, tmp_path: Path) -> None:
    sets = ["epochs=1", "threads=1", "network.chunk=20", "network.delay=2", "rate.start=0.1"]
    sets += [f"prep={prep}", f"optimizer={optimizer}", "validation.examples=2000"]
    summary = train(config(model, *sets), tmp_path / "run")
    assert summary.validation_accuracy is not None
    assert summary.validation_accuracy > 0.25  # one of 30 states by chance
    described = json.loads((tmp_path / "run" / "model.json").read_text())
    assert described["model"] == model
    assert described["chunk"] == 20


@pytest.mark.parametrize("model", ["tdnn", "lstm"])
def test_chunks_give_the_posteriors_of_the_whole_utterance(model: str, prep: Path) -> None:
    opened = Prep.open(prep)
    asked = config(model, "network.chunk=25", "network.hidden=[16,16]")
    network = build(model, **shape_of(asked, opened)).double()
    source = source_of(asked, opened, Part.HELDOUT, network, None)
    assert isinstance(source, ChunkSource)
    at = 0
    for utterance in range(3):
        x, y = source.whole(utterance)
        with torch.no_grad():
            whole = network(x.double())[0]
            chunks = -(-y.shape[1] // 25)
            pieces, states = source.batch(np.arange(at, at + chunks))
            labelled = states.flatten() != UNLABELLED
            got = network(pieces.double()).flatten(0, 1)[labelled]
        assert torch.equal(states.flatten()[labelled], y[0])
        # A frame of a TDNN never needs more than its chunk has; the first chunk of an LSTM has
        # heard all that was said before it.
        count = y.shape[1] if model == "tdnn" else 25
        assert torch.allclose(got[:count], whole[:count], atol=1e-10)
        at += chunks


def test_keys_count_frames_for_every_model() -> None:
    chunked = config("lstm", "network.chunk=32", "strategy.name=averaging", "strategy.every=3200")
    assert examples_in(chunked, 256) == 8
    assert examples_in(chunked, 5) == 1
    assert examples_in(chunked, 0) == 0
    assert strategy_of(chunked).every == 100
    assert (
        strategy_of(config("dnn", "strategy.name=averaging", "strategy.every=3200")).every == 3200
    )


def test_batch_norm_of_a_recurrent_network_is_refused(prep: Path) -> None:
    with pytest.raises(UserError, match="batch_norm"):
        shape_of(config("blstm", "network.batch_norm=true"), Prep.open(prep))


@pytest.mark.parametrize("model", ["dnn", "tdnn"])
def test_training_frames_alone_are_augmented_and_only_by_epoch(model: str, prep: Path) -> None:
    opened = Prep.open(prep)
    asked = config(model, "augment.frequency_masks=2", "augment.time_masks=2")
    network = build(model, **shape_of(asked, opened))
    for part, hidden in ((Part.TRAIN, True), (Part.HELDOUT, False)):
        source = source_of(asked, opened, part, network, None)
        some = np.arange(min(len(source), 500))
        clean = source.batch(some)[0]
        assert (not torch.equal(source.epoch_batch(some, 0)[0], clean)) is hidden
        plain = source_of(config(model), opened, part, network, None)
        assert torch.equal(plain.epoch_batch(some, 0)[0], clean)


def test_cepstra_have_no_bands_to_mask(prep: Path, tmp_path: Path) -> None:
    shutil.copytree(prep, tmp_path / "cepstra")
    header = tmp_path / "cepstra" / "prep.json"
    facts = json.loads(header.read_text())
    facts["made_by"]["features"] = "mfcc"
    header.write_text(json.dumps(facts))
    cepstra = Prep.open(tmp_path / "cepstra")
    with pytest.raises(UserError, match=r"augment\.frequency_masks: PREP .* mfcc"):
        augment_of(config("dnn", "augment.frequency_masks=1"), cepstra)
    assert augment_of(config("dnn", "augment.time_masks=1"), cepstra) is not None
    assert augment_of(config("dnn"), cepstra) is None
