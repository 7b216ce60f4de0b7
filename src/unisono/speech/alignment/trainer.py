"""GMM-HMMs from a flat start, by Viterbi training with growing mixtures; and forced alignment."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unisono.speech.alignment.decision_tree import (
    ContextStats,
    StateTying,
    build_tree,
    leaves,
    merge_contexts,
)
from unisono.speech.alignment.gmm import VARIANCE_FLOOR, GaussianMixtures, GmmStatistics
from unisono.speech.alignment.tasks import (
    AlignmentData,
    Block,
    GmmHmm,
    PassResult,
    SharedFiles,
    Task,
    count_contexts,
    open_worker,
    run_pass,
    start_flat,
    tie_states,
    writing,
)
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import estimate_nodes
from unisono.speech.features.frame_store import concatenate_to_file
from unisono.speech.worker_pool import WorkerPool

__all__ = ["Alignment", "AlignmentData", "GmmHmm", "Trainer"]

# A block has at most so many frames, and so many of its frames times its nodes.
_BLOCK_CELLS = 40_000_000
_BLOCK_FRAMES = 24_000
# Utterances are divided into so many portions, unless they would have fewer frames than this.
_PORTIONS = 48
_PORTION_FRAMES = 8_000

Portion = tuple[Block, ...]


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
class Alignment:
    """The best path of an utterance.

    Attributes:
        states: The state of each frame.
        words: The position in the transcript of the word of each frame; -1: none.
    """

    states: NDArray[np.int32]
    words: NDArray[np.int32]


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
    first passes. Utterances are divided into portions of about as many frames; a pass of a portion
    is one task of a worker. The portions are the same, and are added up in the same order, for
    any number of processes: so is the result.
    """

    def __init__(
        self, data: AlignmentData, *, seed: int, processes: int, log: Callable[[str], None]
    ) -> None:
        """Makes the files that the workers share, beside the frames.

        Args:
            data: Frames and transcripts.
            seed: Of the directions in which Gaussians are split.
            processes: How many work at a time.
            log: Receives one line per pass.

        Raises:
            UserError: The disk is full.
        """
        self._data = data
        self._seed = seed
        self._log = log
        self._folder = tempfile.TemporaryDirectory(dir=data.file.parent, ignore_cleanup_errors=True)
        self._files = SharedFiles(Path(self._folder.name))
        frames = int(data.starts[-1])
        for path in (self._files.states, self._files.words):
            # Written as a whole, so that a full disk is noticed here.
            pieces = (np.full((n, 1), -1) for n in _sizes(frames))
            concatenate_to_file(pieces, path, (frames, 1), "int32")
        self._models = self._tyings = 0
        self._model: GmmHmm | None = None
        self._pool = WorkerPool(processes, open_worker, data, self._files)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._folder.cleanup()

    def monophones(self, utterances: Sequence[int], gaussians: int) -> GmmHmm:
        """Trains monophones, from nothing.

        Args:
            utterances: What to train on.
            gaussians: Gaussians in all, where there are frames enough for so many.
        """
        portions = self._portions(utterances)
        model = self._flat(portions)
        return self._train(model, portions, MONOPHONES, gaussians)

    def triphones(
        self,
        model: GmmHmm,
        utterances: Sequence[int],
        *,
        most: int,
        gaussians: int,
    ) -> GmmHmm:
        """Trains phones in context, their states tied by a decision tree.

        Args:
            model: Monophones, whose alignment the tree is grown from.
            utterances: What to train on.
            most: States, at most.
            gaussians: Gaussians in all, where there are frames enough for so many.
        """
        portions = self._portions(utterances)
        self._pass(model, portions, align=True, learn=False)
        parts = self._pool.map(count_contexts, self._tasks(model, portions))
        counted = merge_contexts(part for part in parts if part is not None)
        tying = build_tree(counted, model.topology, most)
        self._log(f"{len(counted.phone)} states in context are tied to {tying.states}")
        first = replace(model, mixtures=_one_each(counted, tying, model), tying=tying)
        for _ in self._pool.map(tie_states, self._tasks(first, portions)):
            pass
        return self._train(first, portions, TRIPHONES, gaussians)

    def _train(
        self, model: GmmHmm, portions: Sequence[Portion], schedule: Schedule, gaussians: int
    ) -> GmmHmm:
        first = model.mixtures.gaussians
        random = np.random.default_rng(self._seed)
        for turn in range(schedule.passes):
            again = turn in schedule.realign
            results = self._pass(model, portions, align=again, learn=True)
            total = self._statistics(model.mixtures, results)
            mixtures = model.mixtures.update(total)
            share = min(turn + 1, schedule.growing) / schedule.growing
            goal = first + round((gaussians - first) * share)
            if turn < schedule.growing and goal > mixtures.gaussians:
                mixtures = mixtures.grow(goal, total.count, random)
            topology = model.topology
            if again:
                topology = topology.reestimate(np.sum([r.moves for r in results], axis=0))
            model = replace(model, mixtures=mixtures, topology=topology)
            frames = max(total.count.sum(), 1.0)
            self._log(
                f"pass {turn + 1:2} of {schedule.passes}: "
                f"log-likelihood {total.loglike / frames:8.3f} a frame, "
                f"{mixtures.gaussians} Gaussians{', aligned anew' if again else ''}"
            )
        return self._with_silence(model, portions)

    def align(self, model: GmmHmm, *parts: Sequence[int]) -> dict[int, Alignment | None]:
        """The best path of each utterance; None where no path fits.

        Args:
            model: What to align with.
            *parts: Utterances. Those that the model was trained on are best a part by themselves:
                their graphs are then known.
        """
        portions = [portion for part in parts for portion in self._portions(part)]
        lost = {u for result in self._pass(model, portions, align=True) for u in result.lost}
        states, words = (
            np.load(path, mmap_mode="r").ravel() for path in (self._files.states, self._files.words)
        )
        return {
            u: None if u in lost else self._alignment(u, states, words) for p in parts for u in p
        }

    def _alignment(
        self, utterance: int, states: NDArray[np.int32], words: NDArray[np.int32]
    ) -> Alignment:
        own = slice(*self._data.starts[utterance : utterance + 2])
        return Alignment(states=np.array(states[own]), words=np.array(words[own]))

    def _with_silence(self, model: GmmHmm, portions: Sequence[Portion]) -> GmmHmm:
        """The model with the share of the gaps between words in which there is silence."""
        results = self._pass(model, portions, align=True)
        taken = 1 + sum(result.silences for result in results)
        gaps = 2 + sum(result.gaps for result in results)
        return replace(model, silence=min(max(taken / gaps, 0.01), 0.99))

    def _pass(
        self, model: GmmHmm, portions: Sequence[Portion], *, align: bool, learn: bool = False
    ) -> list[PassResult]:
        return list(
            self._pool.map(run_pass, self._tasks(model, portions, align=align, learn=learn))
        )

    def _tasks(
        self,
        model: GmmHmm,
        portions: Sequence[Portion],
        *,
        align: bool = False,
        learn: bool = False,
    ) -> list[Task]:
        """The tasks of a pass, whose model is written first."""
        if model is not self._model:
            if self._model is None or self._model.tying != model.tying:
                self._tyings += 1
                for path in self._files.folder.glob("graphs-*"):
                    path.unlink()
            self._files.model(self._models).unlink(missing_ok=True)
            self._models += 1
            path = self._files.model(self._models)
            with writing(path):
                path.write_bytes(pickle.dumps(model, protocol=5))
            self._model = model
        return [
            Task(
                portion=number,
                blocks=portion,
                model=self._models,
                tying=self._tyings,
                align=align,
                learn=learn,
            )
            for number, portion in enumerate(portions)
        ]

    def _statistics(
        self, mixtures: GaussianMixtures, results: Sequence[PassResult]
    ) -> GmmStatistics:
        """The sums of a pass's statistics, portion after portion."""
        total = GmmStatistics.zero(mixtures)
        for number in range(len(results)):
            np.add(total.sums, np.load(self._files.statistics(number)), out=total.sums)
        return replace(total, loglike=sum(result.loglike for result in results))

    def _flat(self, portions: Sequence[Portion]) -> GmmHmm:
        """One Gaussian a state, all with the mean and variance of all frames."""
        topology = Topology.initial(self._data.lexicon.phones)
        moments = list(self._pool.map(start_flat, portions))
        count = sum(m.count for m in moments)
        mean = np.sum([m.total for m in moments], axis=0) / count
        square = np.sum([m.square for m in moments], axis=0) / count
        shape = (topology.states, len(mean))
        mixtures = GaussianMixtures(
            starts=np.arange(topology.states + 1),
            weights=np.ones(topology.states),
            means=np.broadcast_to(mean, shape).copy(),
            variances=np.broadcast_to(np.maximum(square - mean**2, VARIANCE_FLOOR), shape).copy(),
        )
        return GmmHmm(mixtures=mixtures, topology=topology, tying=StateTying.monophone(topology))

    def _portions(self, utterances: Sequence[int]) -> list[Portion]:
        """Utterances of like length together, in portions of about as many frames."""
        lengths = np.diff(self._data.starts)
        if not utterances:
            return []
        ordered = sorted(utterances, key=lambda u: (-int(lengths[u]), u))
        frames = int(lengths[ordered].sum())
        portion_frames = max(frames / _PORTIONS, _PORTION_FRAMES)
        portions: list[list[int]] = []
        seen = 0
        for u in ordered:
            # By the middle of the utterance: so a long one is not always one too many.
            number = int((seen + lengths[u] / 2) // portion_frames)
            while len(portions) <= number:
                portions.append([])
            portions[number].append(u)
            seen += int(lengths[u])
        return [self._blocks(portion) for portion in portions if portion]

    def _blocks(self, utterances: Sequence[int]) -> Portion:
        """As many utterances together as fit a block."""
        lengths = np.diff(self._data.starts)
        blocks: list[Block] = []
        block: list[int] = []
        frames = nodes = 0
        for u in utterances:
            size = estimate_nodes(self._data.words[u], self._data.lexicon)
            longest = int(lengths[block[0]]) if block else 0
            full = frames + lengths[u] > _BLOCK_FRAMES or (nodes + size) * longest > _BLOCK_CELLS
            if block and full:
                blocks.append(tuple(block))
                block, frames, nodes = [], 0, 0
            block.append(u)
            frames += int(lengths[u])
            nodes += size
        return (*blocks, tuple(block)) if block else tuple(blocks)


def _sizes(frames: int) -> list[int]:
    """Pieces of so many frames in all, none of them large."""
    whole, rest = divmod(frames, 1 << 20)
    return [*[1 << 20] * whole, rest]


def _one_each(counted: ContextStats, tying: StateTying, model: GmmHmm) -> GaussianMixtures:
    """One Gaussian for each tied state; where frames are few, that of the monophone's state."""
    old = model.mixtures
    shares = old.weights[:, None]
    mean = np.add.reduceat(shares * old.means, old.starts[:-1])
    square = np.add.reduceat(shares * (old.variances + old.means**2), old.starts[:-1])
    size = old.means.shape[1]
    sums = np.zeros((tying.states, 1 + 2 * size))
    for phone, trees in enumerate(tying.trees):
        for local, tree in enumerate(trees):
            at = model.tying.states_of(0, phone, 0)[local]
            prior = np.concatenate([[1.0], mean[at], square[at]])
            for leaf in leaves(tree):
                sums[leaf] = prior
    keys = zip(counted.left, counted.phone, counted.right, counted.local, strict=True)
    for (left, phone, right, local), own in zip(keys, counted.sums, strict=True):
        sums[tying.states_of(int(left), int(phone), int(right))[local]] += own
    means = sums[:, 1 : 1 + size] / sums[:, :1]
    variances = np.maximum(sums[:, 1 + size :] / sums[:, :1] - means**2, VARIANCE_FLOOR)
    starts = np.arange(tying.states + 1)
    weights = np.ones(tying.states)
    return GaussianMixtures(starts=starts, weights=weights, means=means, variances=variances)
