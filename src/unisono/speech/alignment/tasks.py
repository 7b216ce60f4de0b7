"""What worker processes do while models are trained, in files that all of them share.

Models, states and statistics are large, and a pass has many tasks. So a task names files: its
worker reads the model of the pass once, and reads and writes the states of its own utterances in
place; only small sums travel between processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unisono.errors import UserError
from unisono.speech.alignment.decision_tree import (
    ContextStats,
    StateTying,
    accumulate_contexts,
    frame_contexts,
)
from unisono.speech.alignment.gmm import Floats, Frames, GaussianMixtures, GmmStatistics
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import (
    Ints,
    build_transcript_graph,
    equal_alignment,
)
from unisono.speech.alignment.viterbi import GraphBatch
from unisono.speech.corpus.lexicon import Lexicon

ALIGNMENT_SCALE = 0.1
"""The acoustic scale of Viterbi alignment."""
FIRST_SILENCE = 0.5
"""The probability of silence between two words, before anything was learned."""
Block = tuple[int, ...]
"""Utterances that are worked on together."""


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
    silence: float = FIRST_SILENCE


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


@dataclass(frozen=True)
class SharedFiles:
    """The files of one training, in a folder of their own.

    Attributes:
        folder: Where they are.
    """

    folder: Path

    @property
    def states(self) -> Path:
        """The state of each frame, int32; -1: no path was found."""
        return self.folder / "states.npy"

    @property
    def words(self) -> Path:
        """The position in the transcript of the word of each frame, int32; -1: none."""
        return self.folder / "words.npy"

    def model(self, number: int) -> Path:
        """The model of a pass."""
        return self.folder / f"model-{number}"

    def statistics(self, portion: int) -> Path:
        """What a portion's frames add to re-estimation, float32."""
        return self.folder / f"statistics-{portion}.npy"

    def graphs(self, tying: int, block: Block) -> Path:
        """A block's graphs with states that are tied in one way."""
        return self.folder / f"graphs-{tying}-{block[0]}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One portion in one pass.

    Attributes:
        portion: Its number.
        blocks: Its utterances.
        model: The number of the model.
        tying: The number of the model's tying.
        align: Find the best paths anew; else those that were found before are used.
        learn: Write statistics; else write what the words of the paths are.
    """

    portion: int
    blocks: tuple[Block, ...]
    model: int
    tying: int
    align: bool
    learn: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class PassResult:
    """What a portion's pass found, but for what it wrote to files.

    Attributes:
        loglike: The frames' log-likelihood, summed.
        moves: How often each move was made.
        silences: How often optional silence was taken.
        gaps: How often it could be.
        lost: Utterances that no path fits.
    """

    loglike: float
    moves: Floats
    silences: int
    gaps: int
    lost: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """The number of frames, their sum and the sum of their squares."""

    count: int
    total: Floats
    square: Floats


class Worker:
    """A process's view of the files."""

    def __init__(self, data: AlignmentData, files: SharedFiles) -> None:
        self.data, self.files = data, files
        self._frames: Frames = np.load(data.file, mmap_mode="r")
        self.states: NDArray[np.int32] = _column(files.states)
        self.words: NDArray[np.int32] = _column(files.words)
        self._model: tuple[int, GmmHmm] | None = None

    def own(self, utterance: int) -> slice:
        """The frames of an utterance."""
        return slice(int(self.data.starts[utterance]), int(self.data.starts[utterance + 1]))

    def frames(self, block: Block) -> Frames:
        """The frames of a block."""
        return np.concatenate([self._frames[self.own(u)] for u in block])

    def model(self, number: int) -> GmmHmm:
        """The model of a pass, read once."""
        if self._model is None or self._model[0] != number:
            self._model = number, pickle.loads(self.files.model(number).read_bytes())
        return self._model[1]

    def graphs(self, block: Block, model: GmmHmm, tying: int) -> GraphBatch:
        """The graphs of a block's transcripts, from a file if they were built before."""
        path = self.files.graphs(tying, block)
        if path.exists():
            known: GraphBatch = pickle.loads(path.read_bytes())
            return known
        data = self.data
        built = GraphBatch(
            [
                build_transcript_graph(data.words[u], data.lexicon, model.topology, model.tying)
                for u in block
            ],
            [int(data.starts[u + 1] - data.starts[u]) for u in block],
        )
        with writing(path):
            path.write_bytes(pickle.dumps(built, protocol=5))
        return built


def _column(path: Path) -> NDArray[np.int32]:
    """A file of one number a frame; what is written to the array is written to the file."""
    return np.asarray(np.load(path, mmap_mode="r+")).reshape(-1)


def open_worker(data: AlignmentData, files: SharedFiles) -> Worker:
    """Opens the files in the process that will work on them."""
    return Worker(data, files)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Reports a full disk in one line.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; make room there") from None


def start_flat(worker: Worker, blocks: tuple[Block, ...]) -> Moments:
    """Divides each utterance evenly among the states of its transcript; counts its frames."""
    data = worker.data
    topology = Topology.initial(data.lexicon.phones)
    count, total, square = 0, np.zeros(1), np.zeros(1)
    for block in blocks:
        for u in block:
            own = worker.own(u)
            length = own.stop - own.start
            worker.states[own] = equal_alignment(data.words[u], length, data.lexicon, topology)
        frames = worker.frames(block).astype(np.float64)
        count += len(frames)
        total, square = total + frames.sum(0), square + (frames**2).sum(0)
    return Moments(count=count, total=total, square=square)


def run_pass(worker: Worker, task: Task) -> PassResult:
    """Finds the paths of a portion, where they are wanted anew, and counts."""
    model = worker.model(task.model)
    moves = np.zeros(model.topology.moves.shape)
    silences = gaps = 0
    lost: list[int] = []
    total = GmmStatistics.zero(model.mixtures)
    for block in task.blocks:
        frames = worker.frames(block)
        if task.align:
            batch = worker.graphs(block, model, task.tying)
            lengths = [worker.own(u).stop - worker.own(u).start for u in block]
            cuts = np.cumsum(lengths)[:-1]
            found = batch.find(
                [
                    model.mixtures.loglikes(each, needed)
                    for each, needed in zip(np.split(frames, cuts), batch.needed, strict=True)
                ],
                model.topology.scores(),
                model.silence,
                ALIGNMENT_SCALE,
            )
            moves += found.moves
            silences += found.silences
            states = np.where(np.repeat(found.reached, lengths), found.states, -1)
            for u, path, words in zip(
                block, np.split(states, cuts), np.split(found.words, cuts), strict=True
            ):
                worker.states[worker.own(u)] = path
                if not task.learn:
                    worker.words[worker.own(u)] = words
            for u, reached in zip(block, found.reached, strict=True):
                if reached:
                    gaps += len(worker.data.words[u]) + 1
                else:
                    lost.append(u)
        else:
            states = np.concatenate([worker.states[worker.own(u)] for u in block])
        if task.learn:
            known = states >= 0
            total += model.mixtures.accumulate(frames[known], states[known])
    if task.learn:
        file = worker.files.statistics(task.portion)
        with writing(file):
            np.save(file, total.sums.astype(np.float32))
    return PassResult(
        loglike=total.loglike, moves=moves, silences=silences, gaps=gaps, lost=tuple(lost)
    )


def count_contexts(worker: Worker, task: Task) -> ContextStats | None:
    """Statistics of a portion's states in context, as it is aligned by monophones."""
    topology = worker.model(task.model).topology
    aligned = [
        tuple(u for u in block if worker.states[worker.own(u).start] >= 0) for block in task.blocks
    ]
    if not any(aligned):
        return None
    return accumulate_contexts(
        (worker.frames(block), np.concatenate([_contexts(worker, u, topology) for u in block]))
        for block in aligned
        if block
    )


def tie_states(worker: Worker, task: Task) -> None:
    """Replaces the states of monophones by tied ones."""
    model = worker.model(task.model)
    for block in task.blocks:
        for u in block:
            if worker.states[worker.own(u).start] >= 0:
                contexts = _contexts(worker, u, model.topology)
                rows, which = np.unique(contexts, axis=0, return_inverse=True)
                numbers = [
                    model.tying.states_of(left, phone, right)[local]
                    for left, phone, right, local in rows.tolist()
                ]
                worker.states[worker.own(u)] = np.array(numbers)[which.ravel()]


def _contexts(worker: Worker, utterance: int, topology: Topology) -> NDArray[np.int16]:
    return frame_contexts(worker.states[worker.own(utterance)].astype(np.int64), topology)
