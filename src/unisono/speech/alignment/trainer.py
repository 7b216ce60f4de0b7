"""GMM-HMMs from a flat start, by Viterbi training with growing mixtures; and forced alignment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unisono.speech.alignment.decision_tree import (
    ContextStats,
    FrameContexts,
    StateTying,
    accumulate_contexts,
    build_tree,
    frame_contexts,
    leaves,
)
from unisono.speech.alignment.gmm import VARIANCE_FLOOR, Frames, GaussianMixtures, GmmStatistics
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import (
    Ints,
    build_transcript_graph,
    equal_alignment,
    estimate_nodes,
)
from unisono.speech.alignment.viterbi import GraphBatch, ViterbiResult
from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.worker_pool import WorkerPool

# A block's table of choices has at most this many entries.
_BLOCK_CELLS = 40_000_000
_BLOCK_FRAMES = 24_000


ALIGNMENT_SCALE = 0.1
"""The acoustic scale of Viterbi alignment."""
_FIRST_SILENCE = 0.5
# Graphs of blocks are kept for the next pass up to so many nodes, some 300 bytes each.
_MAX_CACHED_NODES = 2_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class GmmHmm:
    """A GMM-HMM: emission densities, transitions and tying of the states.

    Attributes:
        mixtures: A mixture a state.
        topology: The phones and the moves inside them.
        tying: The states of phones between their neighbours.
        silence: The probability of silence between two words.
    """

    mixtures: GaussianMixtures
    topology: Topology
    tying: StateTying
    silence: float = _FIRST_SILENCE


@dataclass(frozen=True, kw_only=True, eq=False)
class AlignmentData:
    """Transcribed frames in a file, as worker processes open them.

    Attributes:
        file: A .npy file of all frames, float32.
        starts: Utterance u is frames starts[u] to starts[u + 1] - 1.
        words: The words of each utterance.
        lexicon: Their pronunciations.
    """

    file: Path
    starts: Ints
    words: Sequence[tuple[str, ...]]
    lexicon: Lexicon


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One block of utterances in one pass; `states` None: find them anew."""

    model: GmmHmm
    block: tuple[int, ...]
    states: Ints | None
    learn: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskResult:
    """The state of each frame (-1: no path fits), the paths, and the statistics."""

    states: Ints
    result: ViterbiResult | None
    statistics: GmmStatistics | None


@dataclass(eq=False)
class WorkerState:
    """A worker's view of the frames, and the graphs that it has built."""

    data: AlignmentData
    frames: Frames
    tying: StateTying | None = None
    graphs: dict[tuple[int, ...], GraphBatch] = field(default_factory=dict)
    nodes: int = 0


def open_worker_state(data: AlignmentData) -> WorkerState:
    """Opens the frames in the process that will work on them."""
    return WorkerState(data, np.load(data.file, mmap_mode="r"))


def run_task(state: WorkerState, task: Task) -> TaskResult:
    """Finds the paths of a block of utterances, where they are wanted anew, and counts."""
    data = state.data
    bounds = [(int(data.starts[u]), int(data.starts[u + 1])) for u in task.block]
    frames = np.concatenate([state.frames[first:last] for first, last in bounds])
    states, result = task.states, None
    if states is None:
        if state.tying != task.model.tying:
            state.tying = task.model.tying
            state.graphs.clear()
            state.nodes = 0
        block = state.graphs.get(task.block)
        if block is None:
            paths = [
                build_transcript_graph(
                    data.words[u], data.lexicon, task.model.topology, task.model.tying
                )
                for u in task.block
            ]
            block = GraphBatch(paths, [last - first for first, last in bounds])
            state.nodes += sum(len(each.state) for each in paths)
            if state.nodes <= _MAX_CACHED_NODES:
                state.graphs[task.block] = block
        result = block.find(
            task.model.mixtures.loglikes(frames),
            task.model.topology.scores(),
            task.model.silence,
            ALIGNMENT_SCALE,
        )
        good = np.repeat(result.reached, [last - first for first, last in bounds])
        states = np.where(good, result.states, -1)
    statistics = None
    if task.learn:
        statistics = task.model.mixtures.accumulate(frames[states >= 0], states[states >= 0])
    return TaskResult(states=states, result=result, statistics=statistics)


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
        self, data: AlignmentData, *, seed: int, processes: int, log: Callable[[str], None]
    ) -> None:
        """Opens the frames.

        Args:
            data: Frames and transcripts.
            seed: Of the directions in which Gaussians are split.
            processes: How many work at a time.
            log: Receives one line per pass.
        """
        self._data = data
        self._seed = seed
        self._log = log
        self._pool = WorkerPool(processes, open_worker_state, data)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def monophones(self, utterances: Sequence[int], gaussians: int) -> GmmHmm:
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
        frames, starts = np.load(self._data.file, mmap_mode="r"), self._data.starts
        contexts = {
            u: frame_contexts(path.states, model.topology)
            for u, path in self.align(model, utterances).items()
            if path is not None
        }
        counted = accumulate_contexts(
            (frames[starts[u] : starts[u + 1]], contexts[u]) for u in utterances if u in contexts
        )
        tying = build_tree(counted, model.topology, most)
        self._log(f"{len(counted.phone)} states in context are tied to {tying.states}")
        blocks = self._blocks(utterances)
        states = [
            np.concatenate([_retie(contexts.get(u), self._length(u), tying) for u in block])
            for block in blocks
        ]
        first = replace(model, mixtures=_one_each(counted, tying, model), tying=tying)
        return self._train(first, blocks, states, TRIPHONES, gaussians)

    def _train(
        self,
        model: GmmHmm,
        blocks: Sequence[tuple[int, ...]],
        states: Sequence[Ints],
        schedule: Schedule,
        gaussians: int,
    ) -> GmmHmm:
        first = model.mixtures.gaussians
        random = np.random.default_rng(self._seed)
        for turn in range(schedule.passes):
            again = turn in schedule.realign
            tasks = [
                Task(model=model, block=block, states=None if again else known)
                for block, known in zip(blocks, states, strict=True)
            ]
            states, total, moves = _gather(self._pool.map(run_task, tasks))
            mixtures = model.mixtures.update(total)
            share = min(turn + 1, schedule.growing) / schedule.growing
            goal = first + round((gaussians - first) * share)
            if turn < schedule.growing and goal > mixtures.gaussians:
                mixtures = mixtures.grow(goal, total.count, random)
            topology = model.topology
            if moves is not None:
                topology = topology.reestimate(moves)
            model = replace(model, mixtures=mixtures, topology=topology)
            frames = max(total.count.sum(), 1.0)
            self._log(
                f"pass {turn + 1:2} of {schedule.passes}: "
                f"log-likelihood {total.loglike / frames:8.3f} a frame, "
                f"{mixtures.gaussians} Gaussians{', aligned anew' if again else ''}"
            )
        return self._with_silence(model, blocks)

    def align(self, model: GmmHmm, utterances: Sequence[int]) -> dict[int, Alignment | None]:
        """The best path of each utterance; None where no path fits."""
        aligned: dict[int, Alignment | None] = {}
        for block, done in self._pass(model, self._blocks(utterances)):
            assert done.result is not None
            at = 0
            for u, reached in zip(block, done.result.reached, strict=True):
                own = slice(at, at + self._length(u))
                path = Alignment(states=done.states[own], words=done.result.words[own])
                aligned[u] = path if reached else None
                at = own.stop
        return aligned

    def _with_silence(self, model: GmmHmm, blocks: Sequence[tuple[int, ...]]) -> GmmHmm:
        """The model with the share of the gaps between words in which there is silence."""
        taken, gaps = 1, 2
        for block, done in self._pass(model, blocks):
            assert done.result is not None
            taken += done.result.silences
            reached = done.result.reached
            gaps += sum(
                len(self._data.words[u]) + 1 for u, r in zip(block, reached, strict=True) if r
            )
        return replace(model, silence=min(max(taken / gaps, 0.01), 0.99))

    def _pass(
        self, model: GmmHmm, blocks: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[tuple[int, ...], TaskResult]]:
        tasks = [Task(model=model, block=block, states=None, learn=False) for block in blocks]
        return zip(blocks, self._pool.map(run_task, tasks), strict=True)

    def _flat(self, utterances: Sequence[int]) -> GmmHmm:
        """One Gaussian a state, all with the mean and variance of all frames."""
        frames = np.load(self._data.file, mmap_mode="r")
        topology = Topology.initial(self._data.lexicon.phones)
        dimension = frames.shape[1]
        total, square, count = np.zeros(dimension), np.zeros(dimension), 0
        for u in utterances:
            own = frames[self._data.starts[u] : self._data.starts[u + 1]].astype(np.float64)
            total += own.sum(0)
            square += (own**2).sum(0)
            count += len(own)
        mean = total / count
        shape = (topology.states, dimension)
        mixtures = GaussianMixtures(
            starts=np.arange(topology.states + 1),
            weights=np.ones(topology.states),
            means=np.broadcast_to(mean, shape).copy(),
            variances=np.broadcast_to(
                np.maximum(square / count - mean**2, VARIANCE_FLOOR), shape
            ).copy(),
        )
        return GmmHmm(mixtures=mixtures, topology=topology, tying=StateTying.monophone(topology))

    def _equal(self, utterance: int, topology: Topology) -> Ints:
        words, frames = self._data.words[utterance], self._length(utterance)
        return equal_alignment(words, frames, self._data.lexicon, topology)

    def _length(self, utterance: int) -> int:
        return int(self._data.starts[utterance + 1] - self._data.starts[utterance])

    def _blocks(self, utterances: Sequence[int]) -> list[tuple[int, ...]]:
        """Utterances of like length together, as many as fit a block."""
        lengths: NDArray[np.int64] = np.diff(self._data.starts)
        blocks: list[tuple[int, ...]] = []
        block: list[int] = []
        frames = nodes = 0
        for u in sorted(utterances, key=lambda u: (-int(lengths[u]), u)):
            size = estimate_nodes(self._data.words[u], self._data.lexicon)
            longest = int(lengths[block[0]]) if block else 0
            full = frames + lengths[u] > _BLOCK_FRAMES or (nodes + size) * longest > _BLOCK_CELLS
            if block and full:
                blocks.append(tuple(block))
                block, frames, nodes = [], 0, 0
            block.append(u)
            frames += int(lengths[u])
            nodes += size
        return [*blocks, tuple(block)] if block else blocks


def _gather(
    done: Iterable[TaskResult],
) -> tuple[list[Ints], GmmStatistics, NDArray[np.float64] | None]:
    """The states of each block, and the sums of statistics and moves: no block's are kept."""
    states: list[Ints] = []
    total: GmmStatistics | None = None
    moves: NDArray[np.float64] | None = None
    for each in done:
        states.append(each.states)
        if each.statistics is not None:
            total = each.statistics if total is None else total + each.statistics
        if each.result is not None:
            moves = each.result.moves if moves is None else moves + each.result.moves
    assert total is not None
    return states, total, moves


def _retie(contexts: FrameContexts | None, frames: int, tying: StateTying) -> Ints:
    """The tied state of each frame of an utterance; -1 where no path was found."""
    if contexts is None:
        return np.full(frames, -1)
    rows, which = np.unique(contexts, axis=0, return_inverse=True)
    numbers = [
        tying.states_of(left, phone, right)[local] for left, phone, right, local in rows.tolist()
    ]
    return np.array(numbers)[which.ravel()]


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
