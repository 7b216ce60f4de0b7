"""Viterbi alignment of many utterances at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unisono.speech.alignment.gmm import Frames
from unisono.speech.alignment.topology import EXIT
from unisono.speech.alignment.transcript_graph import Ints, TranscriptGraph


@dataclass(frozen=True, kw_only=True, eq=False)
class ViterbiResult:
    """The best paths of a batch of utterances.

    Attributes:
        states: The state of each frame, utterance after utterance.
        words: The position in the transcript of the word of each frame; -1: none.
        reached: For each utterance, whether any path fits; its states mean nothing if not.
        moves: Phones x 5 x 6: how often each move was made.
        silences: How often optional silence was taken.
    """

    states: Ints
    words: Ints
    reached: NDArray[np.bool_]
    moves: NDArray[np.float64]
    silences: int


class GraphBatch:
    """Paths of several utterances as one graph without edges between them.

    All utterances advance by one frame at a time: with alpha_t(j) the best score of any path
    that is at node j in frame t, and b_t(j) what frame t scores in its state,

        alpha_t(j) = max over edges i -> j of alpha_{t-1}(i) + score(i -> j), plus b_t(j).

    The edges are held in rows: row r has the r-th edge into each node that has so many. A row
    is a few operations on whole arrays, and the work is the number of edges, with no beam. For
    each node and frame the number of the best edge is kept, and the paths are read backwards.
    """

    def __init__(self, paths: Sequence[TranscriptGraph], lengths: Sequence[int]) -> None:
        """Joins the paths of utterances with so many frames."""
        sizes = [len(p.state) for p in paths]
        offsets = np.cumsum([0, *sizes[:-1]])
        self._lengths = np.array(lengths)
        self._starts = np.cumsum([0, *lengths])
        self._utterance = np.repeat(np.arange(len(paths)), sizes)
        self._state = np.concatenate([p.state for p in paths])
        self._phone = np.concatenate([p.phone for p in paths])
        self._local = np.concatenate([p.local for p in paths])
        instances = np.cumsum([0] + [len(p.gap) for p in paths[:-1]])
        self._instance = np.concatenate(
            [p.instance + i for p, i in zip(paths, instances, strict=True)]
        )
        self._gap = np.concatenate([p.gap for p in paths])
        self._word = np.concatenate([p.word for p in paths])
        self._begin = np.concatenate([p.initial + o for p, o in zip(paths, offsets, strict=True)])
        self._begin_silent = np.concatenate([p.initial_silence for p in paths])
        source = np.concatenate([p.source + o for p, o in zip(paths, offsets, strict=True)])
        target = np.concatenate(
            [np.where(p.target < 0, -1, p.target + o) for p, o in zip(paths, offsets, strict=True)]
        )
        move = np.concatenate([p.move for p in paths])
        silence = np.concatenate([p.silence for p in paths])
        order = np.argsort(target, kind="stable")
        leaving = int((target < 0).sum())
        self._out = _Edges(source, target, move, silence, order[:leaving])
        order = order[leaving:]
        rank = np.arange(len(order)) - np.searchsorted(target[order], target[order])
        self._rows = [
            _Edges(source, target, move, silence, order[rank == r])
            for r in range(int(rank.max()) + 1)
        ]
        self._before = np.full((len(self._rows), len(self._state)), -1)
        for r, row in enumerate(self._rows):
            self._before[r, row.target] = row.source

    def find(
        self,
        loglikes: Frames,
        moves: NDArray[np.float64],
        silence: float,
        scale: float,
    ) -> ViterbiResult:
        """Finds the best path of each utterance.

        Args:
            loglikes: Frames x states, utterance after utterance.
            moves: Log scores of the topology's moves.
            silence: The probability of silence between words.
            scale: What log-likelihoods are multiplied by.
        """
        taken = np.array([0.0, np.log(silence), np.log1p(-silence)])  # by -1, wraps to the last
        rows = [(row.source, row.target, row.scores(self, moves, taken)) for row in self._rows]
        leave = self._out.scores(self, moves, taken)
        states = loglikes.shape[1]
        flat = np.ascontiguousarray(loglikes).ravel()
        at = self._starts[self._utterance] * states + self._state
        longest = int(self._lengths.max())
        choice = np.zeros((longest, len(self._state)), dtype=np.int16)
        last = np.zeros(len(self._lengths), dtype=np.int64)
        reached = np.zeros(len(self._lengths), dtype=bool)
        alpha = np.full(len(self._state), -np.inf)
        alpha[self._begin] = np.where(self._begin_silent, taken[1], taken[-1])
        for t in range(longest):
            if t:
                alpha = self._advance(alpha, rows, choice[t])
            alpha += scale * flat.take(at + t * states, mode="clip")
            for u in np.flatnonzero(self._lengths == t + 1):
                mine = np.flatnonzero(self._utterance[self._out.source] == u)
                ends = alpha[self._out.source[mine]] + leave[mine]
                best = int(np.argmax(ends))
                last[u] = self._out.source[mine[best]]
                reached[u] = np.isfinite(ends[best])
        return self._trace(choice, last, reached, moves.shape)

    @staticmethod
    def _advance(
        alpha: NDArray[np.float64],
        rows: Sequence[tuple[Ints, Ints, NDArray[np.float64]]],
        choice: NDArray[np.int16],
    ) -> NDArray[np.float64]:
        # Every node has a self-loop, so the first row has an edge into every node.
        source, _, score = rows[0]
        best = alpha[source] + score
        for r, (source, target, score) in enumerate(rows[1:], start=1):
            value = alpha[source] + score
            better = value > best[target]
            winners = target[better]
            best[winners] = value[better]
            choice[winners] = r
        return np.asarray(best)

    def _trace(
        self,
        choice: NDArray[np.int16],
        last: Ints,
        reached: NDArray[np.bool_],
        shape: tuple[int, ...],
    ) -> ViterbiResult:
        node = np.zeros(self._starts[-1], dtype=np.int64)
        now = last.copy()
        for t in range(len(choice) - 1, -1, -1):
            live = np.flatnonzero(self._lengths > t)
            at = now[live]
            node[self._starts[live] + t] = at
            # An utterance without a path leads outside; it stays where it is.
            now[live] = np.maximum(self._before[choice[t, at], at], 0)
        after = np.append(self._instance[node][1:], -1)
        move = np.where(after == self._instance[node], np.append(self._local[node][1:], 0), EXIT)
        move[self._starts[1:] - 1] = EXIT
        good = np.repeat(reached, self._lengths)
        counts = np.zeros(shape)
        chosen = node[good]
        np.add.at(counts, (self._phone[chosen], self._local[chosen], move[good]), 1)
        left = (move == EXIT) & good & self._gap[self._instance[node]]
        return ViterbiResult(
            states=self._state[node],
            words=self._word[self._instance[node]],
            reached=reached,
            moves=counts,
            silences=int(left.sum()),
        )


class _Edges:
    """Some of a block's edges."""

    def __init__(self, source: Ints, target: Ints, move: Ints, silence: Ints, which: Ints) -> None:
        self.source, self.target = source[which], target[which]
        self._move, self._silence = move[which], silence[which]

    def scores(
        self, block: GraphBatch, moves: NDArray[np.float64], taken: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What each edge costs: the move, and the silence taken or passed by."""
        phone, local = block._phone[self.source], block._local[self.source]
        return np.asarray(moves[phone, local, self._move] + taken[self._silence])
