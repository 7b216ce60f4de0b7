"""Frames made on the spot that can be learned, for tests, demonstrations and timing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unisono.data.corpus import Corpus
from unisono.data.prep import Prep, write_prep
from unisono.data.split import Part, hold_out
from unisono.errors import UserError

_SUCCESSORS = 3
_SHORTEST_DWELL = 3
_LONGEST_DWELL = 9
_HELD_OUT_SHARE = 0.15


def synthesise(
    path: Path,
    *,
    speakers: int,
    utterances_per_speaker: int,
    frames_per_utterance: int,
    states: int,
    dimension: int,
    seed: int,
    noise: float,
) -> Prep:
    """Makes a PREP of frames drawn from a model that is like speech in what matters to a trainer.

    A chain visits the states: state s is kept for 3 to 9 frames, all equally likely, and is
    followed by one of three successors (one is s + 1, so every state comes again). Each visit
    draws one of two voicings m, and speaker k says frame t as

        x_t = offset_k + scale_k * (centre[s, m] + noise * e_t),      e_t ~ N(0, I)

    with centres and offsets from N(0, I) and log scales from N(0, 0.2^2), all fixed by the seed.
    Neighbours share their state and voicing, so context averages the noise away; offset and
    scale are what normalisation removes; two centres a state, without order among the states,
    are what a linear model of one frame cannot separate. With noise above about 0.5 frames of
    different states overlap, so no model reaches accuracy 1.

    Args:
        path: The PREP to make.
        speakers: How many speakers, at least 3: about 15% are held out and 15% are for test,
            one of each at least.
        utterances_per_speaker: Utterances of each.
        frames_per_utterance: Frames of each utterance.
        states: How many states.
        dimension: Numbers a frame.
        seed: Fixes everything.
        noise: Standard deviation of the noise within a state, where the centres have 1.

    Returns:
        The new PREP, opened.

    Raises:
        UserError: `path` exists, or a number is too small.
    """
    settings = {
        "speakers": speakers,
        "utterances_per_speaker": utterances_per_speaker,
        "frames_per_utterance": frames_per_utterance,
        "states": states,
        "dimension": dimension,
        "seed": seed,
        "noise": noise,
    }
    least = {"speakers": 3, "seed": 0, "noise": 0}
    for name, value in settings.items():
        if value < least.get(name, 1):
            raise UserError(
                f"synthetic frames: {name} is {value}; give {least.get(name, 1)} or more"
            )
    random = np.random.default_rng(seed)
    utterances = speakers * utterances_per_speaker
    state, voicing = _visits(random, utterances, frames_per_utterance, states)
    centre = random.standard_normal((states, 2, dimension))
    offset = random.standard_normal((speakers, 1, 1, dimension))
    scale = np.exp(0.2 * random.standard_normal((speakers, 1, 1, dimension)))
    frames = centre[state, voicing]
    frames += noise * random.standard_normal(frames.shape)
    by_speaker = frames.reshape(speakers, utterances_per_speaker, frames_per_utterance, dimension)
    by_speaker *= scale
    by_speaker += offset
    names = [f"speaker{k:03d}" for k in range(speakers)]
    part_of = _parts(names, seed)
    said_by = np.repeat(names, utterances_per_speaker).tolist()
    corpus = Corpus(
        origin="synthetic frames",
        frames=frames.reshape(-1, dimension).astype(np.float16),
        states=state.ravel(),
        starts=np.arange(utterances + 1) * frames_per_utterance,
        utterances=[f"{name}-{u % utterances_per_speaker:04d}" for u, name in enumerate(said_by)],
        speakers=said_by,
        parts=[part_of[name] for name in said_by],
        state_count=states,
    )
    return write_prep(path, corpus, settings)


def _visits(
    random: np.random.Generator, utterances: int, frames: int, states: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """State and voicing of each frame, utterances x frames: one step of all chains at a time."""
    successors = random.integers(states, size=(states, _SUCCESSORS))
    successors[:, 0] = (np.arange(states) + 1) % states
    state, voicing = (np.empty((utterances, frames), dtype=np.int64) for _ in range(2))
    now = random.integers(states, size=utterances)
    sound = random.integers(2, size=utterances)
    left = random.integers(1, _LONGEST_DWELL + 1, size=utterances)
    for t in range(frames):
        ended = left == 0
        now = np.where(ended, successors[now, random.integers(_SUCCESSORS, size=utterances)], now)
        sound = np.where(ended, random.integers(2, size=utterances), sound)
        dwell = random.integers(_SHORTEST_DWELL, _LONGEST_DWELL + 1, size=utterances)
        left = np.where(ended, dwell, left) - 1
        state[:, t], voicing[:, t] = now, sound
    return state, voicing


def _parts(names: list[str], seed: int) -> dict[str, Part]:
    """The part of each speaker."""
    heldout = hold_out(names, _HELD_OUT_SHARE, seed)
    test = hold_out(set(names) - heldout, _HELD_OUT_SHARE, seed)
    parts = dict.fromkeys(names, Part.TRAIN)
    parts |= dict.fromkeys(heldout, Part.HELDOUT) | dict.fromkeys(test, Part.TEST)
    return parts
