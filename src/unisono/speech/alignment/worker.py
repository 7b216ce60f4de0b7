"""One pass over a block of utterances: find the best paths, and count what they pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unisono.speech.alignment.gmm import Frames, Mixtures, Statistics
from unisono.speech.alignment.state_tying import Tying
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import Ints, lay_paths
from unisono.speech.alignment.viterbi import Block, Found
from unisono.speech.corpus.lexicon import Lexicon

ALIGNMENT_SCALE = 0.1
"""What log-likelihoods are multiplied by where paths are sought."""
_FIRST_SILENCE = 0.5
# Graphs of blocks are kept for the next pass up to so many places, some 300 bytes each.
_MOST_PLACES = 2_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Acoustic:
    """A model: what states sound like, and how they follow each other.

    Attributes:
        mixtures: A mixture a state.
        topology: The phones and the moves inside them.
        tying: The states of phones between their neighbours.
        silence: The probability of silence between two words.
    """

    mixtures: Mixtures
    topology: Topology
    tying: Tying
    silence: float = _FIRST_SILENCE


@dataclass(frozen=True, kw_only=True, eq=False)
class Spoken:
    """Transcribed frames in a file, as the processes of a crew open them.

    Attributes:
        file: A .npy file of all frames, float32.
        starts: Utterance u is frames starts[u] to starts[u + 1] - 1.
        words: The words of each utterance.
        lexicon: How they are said.
    """

    file: Path
    starts: Ints
    words: Sequence[tuple[str, ...]]
    lexicon: Lexicon


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One block of utterances in one pass; `states` None: find them anew."""

    model: Acoustic
    block: tuple[int, ...]
    states: Ints | None
    learn: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Done:
    """What came of it: a state a frame (-1: no path fits), and what was found and counted."""

    states: Ints
    found: Found | None
    statistics: Statistics | None


@dataclass(eq=False)
class Hearing:
    """A process's own view of the frames, and the graphs that it has laid."""

    spoken: Spoken
    frames: Frames
    tying: Tying | None = None
    laid: dict[tuple[int, ...], Block] = field(default_factory=dict)
    places: int = 0


def open_frames(spoken: Spoken) -> Hearing:
    """Opens the frames in the process that will work on them."""
    return Hearing(spoken, np.load(spoken.file, mmap_mode="r"))


def work(hearing: Hearing, task: Task) -> Done:
    """Finds the paths of a block of utterances, where they are wanted anew, and counts."""
    spoken = hearing.spoken
    bounds = [(int(spoken.starts[u]), int(spoken.starts[u + 1])) for u in task.block]
    frames = np.concatenate([hearing.frames[first:last] for first, last in bounds])
    states, found = task.states, None
    if states is None:
        if hearing.tying != task.model.tying:
            hearing.tying = task.model.tying
            hearing.laid.clear()
            hearing.places = 0
        block = hearing.laid.get(task.block)
        if block is None:
            paths = [
                lay_paths(spoken.words[u], spoken.lexicon, task.model.topology, task.model.tying)
                for u in task.block
            ]
            block = Block(paths, [last - first for first, last in bounds])
            hearing.places += sum(len(each.state) for each in paths)
            if hearing.places <= _MOST_PLACES:
                hearing.laid[task.block] = block
        found = block.find(
            task.model.mixtures.loglikes(frames),
            task.model.topology.scores(),
            task.model.silence,
            ALIGNMENT_SCALE,
        )
        good = np.repeat(found.reached, [last - first for first, last in bounds])
        states = np.where(good, found.states, -1)
    statistics = None
    if task.learn:
        statistics = task.model.mixtures.accumulate(frames[states >= 0], states[states >= 0])
    return Done(states=states, found=found, statistics=statistics)
