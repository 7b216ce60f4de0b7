"""Models from a flat start, by Viterbi training with growing mixtures; and their alignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unisono.speech.alignment.decision_tree import (
    Contexts,
    Neighbours,
    contexts_of,
    count_contexts,
    grow_tying,
)
from unisono.speech.alignment.gmm import VARIANCE_FLOOR, Mixtures, Statistics
from unisono.speech.alignment.state_tying import Tying, leaves
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import Ints, count_places, equal_states
from unisono.speech.alignment.worker import Acoustic, Done, Spoken, Task, open_frames, work
from unisono.speech.worker_pool import Crew

# A block's table of choices has at most this many entries.
_BLOCK_CELLS = 40_000_000
_BLOCK_FRAMES = 24_000


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a model is trained.

    Attributes:
        passes: Re-estimations.
        growing: In how many of them, from the first, mixtures grow.
        realign: The passes (from 0) before which the best paths are found anew.
    """

    passes: int
    growing: int
    realign: frozenset[int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Aligned:
    """The best path of an utterance.

    Attributes:
        states: The state of each frame.
        words: The place in the transcript of the word that each frame is of; -1: of none.
    """

    states: Ints
    words: Ints


MONOPHONES = Schedule(
    passes=40,
    growing=30,
    realign=frozenset({*range(1, 11), 12, 14, 16, 18, 20, 23, 26, 29, 32, 35, 38}),
)
TRIPHONES = Schedule(passes=34, growing=25, realign=frozenset({10, 20, 30}))


class Trainer:
    """Trains models and aligns with them.

    A pass finds for each utterance the best path through its transcript (in most passes it
    keeps the one that it had), counts, re-estimates, and lets the mixtures grow evenly over the
    first passes. Blocks of utterances are the same, and are added up in the same order, for any
    number of processes: so is the result.
    """

    def __init__(
        self, spoken: Spoken, *, seed: int, processes: int, say: Callable[[str], None]
    ) -> None:
        """Opens the frames.

        Args:
            spoken: Frames and transcripts.
            seed: Of the directions in which Gaussians are split.
            processes: How many work at a time.
            say: Takes a line a pass.
        """
        self._spoken = spoken
        self._seed = seed
        self._say = say
        self._crew = Crew(processes, open_frames, spoken)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self._crew.close()

    def monophones(self, utterances: Sequence[int], gaussians: int) -> Acoustic:
        """Trains monophones, from nothing.

        Args:
            utterances: What to train on.
            gaussians: Gaussians in all, where there are frames enough for so many.
        """
        model = self._flat(utterances)
        blocks = self._blocks(utterances)
        states = [
            np.concatenate([self._equal(u, model.topology) for u in block]) for block in blocks
        ]
        return self._train(model, blocks, states, MONOPHONES, gaussians)

    def triphones(
        self,
        model: Acoustic,
        utterances: Sequence[int],
        *,
        most: int,
        gaussians: int,
    ) -> Acoustic:
        """Trains phones in context, their states tied by a decision tree.

        Args:
            model: Monophones, whose alignment the tree is grown from.
            utterances: What to train on.
            most: States, at most.
            gaussians: Gaussians in all, where there are frames enough for so many.
        """
        frames, starts = np.load(self._spoken.file, mmap_mode="r"), self._spoken.starts
        contexts = {
            u: contexts_of(path.states, model.topology)
            for u, path in self.align(model, utterances).items()
            if path is not None
        }
        counted = count_contexts(
            (frames[starts[u] : starts[u + 1]], contexts[u]) for u in utterances if u in contexts
        )
        tying = grow_tying(counted, model.topology, most)
        self._say(f"{len(counted.phone)} states in context are tied to {tying.states}")
        blocks = self._blocks(utterances)
        states = [
            np.concatenate([_retie(contexts.get(u), self._length(u), tying) for u in block])
            for block in blocks
        ]
        first = replace(model, mixtures=_one_each(counted, tying, model), tying=tying)
        return self._train(first, blocks, states, TRIPHONES, gaussians)

    def _train(
        self,
        model: Acoustic,
        blocks: Sequence[tuple[int, ...]],
        states: Sequence[Ints],
        schedule: Schedule,
        gaussians: int,
    ) -> Acoustic:
        first = model.mixtures.gaussians
        random = np.random.default_rng(self._seed)
        for turn in range(schedule.passes):
            again = turn in schedule.realign
            tasks = [
                Task(model=model, block=block, states=None if again else known)
                for block, known in zip(blocks, states, strict=True)
            ]
            states, total, moves = _gather(self._crew.map(work, tasks))
            mixtures = model.mixtures.update(total)
            share = min(turn + 1, schedule.growing) / schedule.growing
            goal = first + round((gaussians - first) * share)
            if turn < schedule.growing and goal > mixtures.gaussians:
                mixtures = mixtures.grow(goal, total.count, random)
            topology = model.topology
            if moves is not None:
                topology = topology.learn(moves)
            model = replace(model, mixtures=mixtures, topology=topology)
            frames = max(total.count.sum(), 1.0)
            self._say(
                f"pass {turn + 1:2} of {schedule.passes}: "
                f"log-likelihood {total.loglike / frames:8.3f} a frame, "
                f"{mixtures.gaussians} Gaussians{', aligned anew' if again else ''}"
            )
        return self._with_silence(model, blocks)

    def align(self, model: Acoustic, utterances: Sequence[int]) -> dict[int, Aligned | None]:
        """The best path of each utterance; None where no path fits."""
        aligned: dict[int, Aligned | None] = {}
        for block, done in self._pass(model, self._blocks(utterances)):
            assert done.found is not None
            at = 0
            for u, reached in zip(block, done.found.reached, strict=True):
                own = slice(at, at + self._length(u))
                path = Aligned(states=done.states[own], words=done.found.words[own])
                aligned[u] = path if reached else None
                at = own.stop
        return aligned

    def _with_silence(self, model: Acoustic, blocks: Sequence[tuple[int, ...]]) -> Acoustic:
        """The model with the share of the gaps between words in which there is silence."""
        taken, gaps = 1, 2
        for block, done in self._pass(model, blocks):
            assert done.found is not None
            taken += done.found.silences
            reached = done.found.reached
            gaps += sum(
                len(self._spoken.words[u]) + 1 for u, r in zip(block, reached, strict=True) if r
            )
        return replace(model, silence=min(max(taken / gaps, 0.01), 0.99))

    def _pass(
        self, model: Acoustic, blocks: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[tuple[int, ...], Done]]:
        tasks = [Task(model=model, block=block, states=None, learn=False) for block in blocks]
        return zip(blocks, self._crew.map(work, tasks), strict=True)

    def _flat(self, utterances: Sequence[int]) -> Acoustic:
        """One Gaussian a state, all with the mean and variance of all frames."""
        frames = np.load(self._spoken.file, mmap_mode="r")
        topology = Topology.start(self._spoken.lexicon.phones)
        dimension = frames.shape[1]
        total, square, count = np.zeros(dimension), np.zeros(dimension), 0
        for u in utterances:
            own = frames[self._spoken.starts[u] : self._spoken.starts[u + 1]].astype(np.float64)
            total += own.sum(0)
            square += (own**2).sum(0)
            count += len(own)
        mean = total / count
        shape = (topology.states, dimension)
        mixtures = Mixtures(
            starts=np.arange(topology.states + 1),
            weights=np.ones(topology.states),
            means=np.broadcast_to(mean, shape).copy(),
            variances=np.broadcast_to(
                np.maximum(square / count - mean**2, VARIANCE_FLOOR), shape
            ).copy(),
        )
        return Acoustic(mixtures=mixtures, topology=topology, tying=Tying.none(topology))

    def _equal(self, utterance: int, topology: Topology) -> Ints:
        words, frames = self._spoken.words[utterance], self._length(utterance)
        return equal_states(words, frames, self._spoken.lexicon, topology)

    def _length(self, utterance: int) -> int:
        return int(self._spoken.starts[utterance + 1] - self._spoken.starts[utterance])

    def _blocks(self, utterances: Sequence[int]) -> list[tuple[int, ...]]:
        """Utterances of like length together, as many as fit a block."""
        lengths: NDArray[np.int64] = np.diff(self._spoken.starts)
        blocks: list[tuple[int, ...]] = []
        block: list[int] = []
        frames = places = 0
        for u in sorted(utterances, key=lambda u: (-int(lengths[u]), u)):
            size = count_places(self._spoken.words[u], self._spoken.lexicon)
            longest = int(lengths[block[0]]) if block else 0
            full = frames + lengths[u] > _BLOCK_FRAMES or (places + size) * longest > _BLOCK_CELLS
            if block and full:
                blocks.append(tuple(block))
                block, frames, places = [], 0, 0
            block.append(u)
            frames += int(lengths[u])
            places += size
        return [*blocks, tuple(block)] if block else blocks


def _gather(
    done: Iterable[Done],
) -> tuple[list[Ints], Statistics, NDArray[np.float64] | None]:
    """The states of each block, and the sums of statistics and moves: no block's are kept."""
    states: list[Ints] = []
    total: Statistics | None = None
    moves: NDArray[np.float64] | None = None
    for each in done:
        states.append(each.states)
        if each.statistics is not None:
            total = each.statistics if total is None else total + each.statistics
        if each.found is not None:
            moves = each.found.moves if moves is None else moves + each.found.moves
    assert total is not None
    return states, total, moves


def _retie(contexts: Neighbours | None, frames: int, tying: Tying) -> Ints:
    """The tied state of each frame of an utterance; -1 where no path was found."""
    if contexts is None:
        return np.full(frames, -1)
    rows, which = np.unique(contexts, axis=0, return_inverse=True)
    numbers = [tying.row(left, phone, right)[local] for left, phone, right, local in rows.tolist()]
    return np.array(numbers)[which.ravel()]


def _one_each(counted: Contexts, tying: Tying, model: Acoustic) -> Mixtures:
    """One Gaussian for each tied state; where frames are few, that of the monophone's state."""
    old = model.mixtures
    shares = old.weights[:, None]
    mean = np.add.reduceat(shares * old.means, old.starts[:-1])
    square = np.add.reduceat(shares * (old.variances + old.means**2), old.starts[:-1])
    size = old.means.shape[1]
    sums = np.zeros((tying.states, 1 + 2 * size))
    for phone, trees in enumerate(tying.trees):
        for local, tree in enumerate(trees):
            at = model.tying.row(0, phone, 0)[local]
            prior = np.concatenate([[1.0], mean[at], square[at]])
            for leaf in leaves(tree):
                sums[leaf] = prior
    keys = zip(counted.left, counted.phone, counted.right, counted.local, strict=True)
    for (left, phone, right, local), own in zip(keys, counted.sums, strict=True):
        sums[tying.row(int(left), int(phone), int(right))[local]] += own
    means = sums[:, 1 : 1 + size] / sums[:, :1]
    variances = np.maximum(sums[:, 1 + size :] / sums[:, :1] - means**2, VARIANCE_FLOOR)
    starts = np.arange(tying.states + 1)
    weights = np.ones(tying.states)
    return Mixtures(starts=starts, weights=weights, means=means, variances=variances)
