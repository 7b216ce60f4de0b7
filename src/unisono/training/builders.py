"""What a configuration and its data make: model, device, optimizer, and what they are fed with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unisono.config import (
    FRAMES_AN_UTTERANCE,
    Config,
    DeviceChoice,
    ObjectiveChoice,
    OptimizerChoice,
    ValidationChoice,
)
from unisono.data import (
    ChunkSource,
    FrameSource,
    Part,
    Prep,
    SpecAugment,
    UtteranceSource,
    long_enough,
)
from unisono.errors import UserError
from unisono.learner.positions import Positions
from unisono.models import Takes, find
from unisono.optim import NaturalGradientSGD, bound_steps
from unisono.strategies.base import Strategy
from unisono.strategies.registry import make
from unisono.training.kaldi.recipe import decay_of, dropout_of
from unisono.training.rates import folds_momentum

Examples = FrameSource | ChunkSource | UtteranceSource
"""What a model is trained on and scored with."""
_CEPSTRA = ("mfcc", "plp", "plp-pitch")


def open_data(config: Config) -> Prep:
    """Opens the prepared data; where nothing is checked, all speakers are for training.

    Raises:
        UserError: there is none, or it is broken.
    """
    prep = Prep.open(Path(config.prep))
    return prep if config.validation.on is ValidationChoice.HELDOUT else prep.joined()


def shape_of(config: Config, prep: Prep) -> dict[str, Any]:
    """Returns the keywords of the model's `build`, but for its seed.

    Raises:
        UserError: The configuration asks for what the model or the data does not have.
    """
    outputs = _outputs(config, prep)
    model, network = find(config.model), config.network
    if network.batch_norm and "batch_norm" not in model.options.values():
        raise UserError(f"network.batch_norm: model {config.model} has no batch normalisation")
    unknown = [key for key in model.options.values() if key not in type(network).model_fields]
    if unknown:
        raise UserError(f"model {config.model}: [network] has no key {unknown[0]!r}")
    options = {keyword: getattr(network, key) for keyword, key in model.options.items()}
    schedule = dropout_of(config)
    if schedule is not None and "dropout" in options:
        options["dropout"] = schedule.most
    if config.objective is ObjectiveChoice.CTC:
        # A whole utterance needs nothing around it to build up the state of a recurrent model.
        options |= {
            keyword: 0 for keyword, key in model.options.items() if key in ("left", "right")
        }
    frames = 2 * context_of(config) + 1
    return {"inputs": frames * prep.header.dimension, "outputs": outputs, **options}


def _outputs(config: Config, prep: Prep) -> int:
    header = prep.header
    if config.objective is ObjectiveChoice.CTC:
        if not header.phones:
            raise UserError(
                f"PREP {prep.path} has no phones, which --objective ctc learns: make it with "
                "unisono prepare DATA --lexicon FILE"
            )
        return 1 + header.phones
    if not header.states:
        raise UserError(
            f"PREP {prep.path} has no alignment: train with --objective ctc, or prepare it without "
            "--no-alignment"
        )
    return header.states


def context_of(config: Config) -> int:
    """Frames each side that a model gets as one row with each frame.

    With CTC a model of whole utterances gets as many as lie between two outputs.
    """
    if find(config.model).takes is Takes.FRAMES:
        return config.network.context
    return subsampling_of(config) // 2


def subsampling_of(config: Config) -> int:
    """Frames from one output of a model to the next."""
    return config.network.subsampling if config.objective is ObjectiveChoice.CTC else 1


def ctc_facts(config: Config) -> dict[str, Any]:
    """What the description of a model says of CTC; of frames with states, nothing."""
    if config.objective is not ObjectiveChoice.CTC:
        return {}
    return {
        "objective": config.objective.value,
        "context": context_of(config),
        "subsampling": subsampling_of(config),
    }


def choose_device(config: Config, number: int) -> torch.device:
    """The learner's device; learners share the GPUs in turn."""
    if config.device is DeviceChoice.CPU:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", number % torch.cuda.device_count())
    if config.device is DeviceChoice.CUDA:
        raise UserError("device is cuda, but torch finds no GPU here; use --set device=cpu")
    return torch.device("cpu")


def make_optimizer(config: Config, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """The optimizer that the configuration names."""
    decay = decay_of(config)
    if config.chosen_optimizer is OptimizerChoice.ADAMW:
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, fused=True)
    momentum = 0.0 if folds_momentum(config) else config.rate.momentum
    if config.chosen_optimizer is OptimizerChoice.NG_SGD:
        options = config.natural_gradient.model_dump()
        bound = options.pop("max_change_output")
        natural = NaturalGradientSGD(model, rate, momentum=momentum, weight_decay=decay, **options)
        natural.param_groups[-1]["max_change"] = bound  # the output layer is the last of all
        return natural
    plain = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=momentum, weight_decay=decay, fused=True
    )
    bound_steps(plain, config.rate.max_change)
    return plain


def source_of(
    config: Config, prep: Prep, part: Part, model: nn.Module, device: torch.device | None
) -> Examples:
    """Returns the examples that a model is trained on: frames with context, chunks or utterances.

    Those to train on are augmented as `[augment]` says, where they are drawn by epoch.

    Raises:
        UserError: A model that takes chunks does not say what it needs around them.
    """
    network = config.network
    augment = augment_of(config, prep) if part is Part.TRAIN else None
    takes_frames, context = find(config.model).takes is Takes.FRAMES, context_of(config)
    is_ctc = config.objective is ObjectiveChoice.CTC
    if takes_frames and not is_ctc:
        return FrameSource(prep, part, context=context, device=device, augment=augment)
    left, right = (0 if takes_frames else getattr(model, side, None) for side in ("left", "right"))
    if not (isinstance(left, int) and isinstance(right, int)):
        raise UserError(f"model {config.model} takes chunks, but has no attributes left and right")
    if is_ctc:
        return UtteranceSource(
            prep,
            part,
            subsampling=network.subsampling,
            context=context,
            left=left,
            right=right,
            device=device,
            augment=augment,
        )
    return ChunkSource(
        prep,
        part,
        chunk=network.chunk,
        left=left,
        right=right,
        device=device,
        augment=augment,
    )


def augment_of(config: Config, prep: Prep) -> SpecAugment | None:
    """Returns the masks that `[augment]` asks for; None: none.

    Raises:
        UserError: Bands are to be masked, and the features of the PREP are cepstra.
    """
    wanted = config.augment
    if not (wanted.frequency_masks or wanted.time_masks):
        return None
    features = prep.header.made_by.get("features")
    if wanted.frequency_masks and features in _CEPSTRA:
        raise UserError(
            f"augment.frequency_masks: PREP {prep.path} has {features} features, which have no "
            "bands: use time masks only (augment.time_masks), or prepare with --features fbank"
        )
    return SpecAugment(**wanted.model_dump(), seed=config.seed)


def examples_in(config: Config, frames: int) -> int:
    """Returns how many examples so many frames are, at least 1; 0 stays 0.

    Keys of the configuration count frames, so that they mean the same for every model.
    """
    return max(1, frames // frames_an_example(config)) if frames else 0


def frames_an_example(config: Config) -> int:
    """Frames that an example counts as: a chunk as many as it has, an utterance always as many."""
    if config.objective is ObjectiveChoice.CTC:
        return FRAMES_AN_UTTERANCE
    return 1 if find(config.model).takes is Takes.FRAMES else config.network.chunk


def positions_of(config: Config, prep: Prep) -> Positions:
    """Returns the minibatches of a run."""
    if config.objective is ObjectiveChoice.CTC:
        count = int(long_enough(prep, Part.TRAIN, config.network.subsampling).sum())
    else:
        utterances = prep.utterances_of(Part.TRAIN)
        lengths = prep.starts[utterances + 1] - prep.starts[utterances]
        count = int((-(-lengths // frames_an_example(config))).sum())
    return Positions(count, examples_in(config, config.minibatch), config.epochs, config.seed)


def committed_examples(config: Config, prep: Prep, committed: Iterable[Sequence[int]]) -> int:
    """Returns how many examples the minibatches of these ranges of positions hold."""
    positions = positions_of(config, prep)
    return sum(
        positions.examples_before(stop) - positions.examples_before(start)
        for start, stop in committed
    )


def strategy_of(config: Config) -> Strategy:
    """Returns the strategy, its pace in examples."""
    strategy = make(config.strategy_name, config.strategy_options)
    frames = frames_an_example(config)
    return strategy if frames == 1 else strategy.in_chunks_of(frames)
