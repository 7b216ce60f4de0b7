"""Viterbi alignment of many utterances at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.speech.alignment.gmm import Floats, Frames
from unisono.speech.alignment.topology import EXIT
from unisono.speech.alignment.transcript_graph import Ints, TranscriptGraph

BEAM = 40.0
"""Nodes that score so much less than the best of their frame are not followed further."""
# The frames between two choices of the nodes that are worth following.
_STRIDE = 32
_NO_BEAM = float("inf")


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
    moves: Floats
    silences: int


class GraphBatch:
    """Paths of several utterances as one graph without edges between them.

    All utterances advance by one frame at a time: with alpha_t(j) the best score of any path
    that is at node j in frame t, and b_t(j) what frame t scores in its state,

        alpha_t(j) = max over edges i -> j of alpha_{t-1}(i) + score(i -> j), plus b_t(j).

    The edges are held in rows: row r has the r-th edge into each node that has so many. A row
    is a few operations on whole arrays. For each node and frame the number of the best edge is
    kept, and the paths are read backwards.

    Nodes are numbered in the order of the transcript, and each utterance is followed in a
    window of them: every 32 frames it is chosen anew, from the first node within the beam to
    the last one that can be reached from any within the beam until the next choice. An utterance
    that no path through its windows ends is searched once more, without a beam.
    """

    def __init__(self, paths: Sequence[TranscriptGraph], lengths: Sequence[int]) -> None:
        """Joins the paths of utterances with so many frames."""
        sizes = [len(p.state) for p in paths]
        self._first = np.cumsum([0, *sizes])
        self._lengths = np.array(lengths)
        self.needed = [np.unique(p.state) for p in paths]
        """The states of each utterance."""
        self._column = _joined(
            (np.searchsorted(n, p.state) for n, p in zip(self.needed, paths, strict=True)), np.int32
        )
        self._phone = _joined((p.phone for p in paths), np.int16)
        self._local = _joined((p.local for p in paths), np.int8)
        instances = np.cumsum([0] + [len(p.gap) for p in paths[:-1]])
        self._instance = _joined(
            (p.instance + i for p, i in zip(paths, instances, strict=True)), np.int32
        )
        self._gap = np.concatenate([p.gap for p in paths])
        self._word = _joined((p.word for p in paths), np.int32)
        offsets = self._first[:-1].tolist()
        self._begin = _joined((p.initial + o for p, o in zip(paths, offsets, strict=True)))
        self._begin_silent = np.concatenate([p.initial_silence for p in paths])
        source = _joined((p.source + o for p, o in zip(paths, offsets, strict=True)), np.int32)
        target = _joined(
            (np.where(p.target < 0, -1, p.target + o) for p, o in zip(paths, offsets, strict=True)),
            np.int32,
        )
        # By target, and from a node to itself first; edges that leave come before all others.
        order = np.lexsort((source != target, target))
        move = _joined((p.move for p in paths), np.int8)[order]
        silence = _joined((p.silence for p in paths), np.int8)[order]
        source, target = source[order], target[order]
        leaving = int((target < 0).sum())
        self._out = _Edges(source[:leaving], move[:leaving], silence[:leaving])
        self._in = _Edges(source[leaving:], move[leaving:], silence[leaving:])
        self._target = target[leaving:]
        self._edge = np.searchsorted(self._target, np.arange(len(self._column) + 1))
        self._reach = self._furthest()

    def _furthest(self) -> Ints:
        """The last node that paths reach from each node, or from one before it, in a stride."""
        reach = np.arange(len(self._column))
        for _ in range(_STRIDE):
            further = reach.copy()
            np.maximum.at(further, self._in.source, reach[self._target])
            reach = further
        # Later utterances have larger numbers, so none reaches into another one.
        return np.maximum.accumulate(reach)

    def find(
        self, loglikes: Sequence[Frames], moves: Floats, silence: float, scale: float
    ) -> ViterbiResult:
        """Finds the best path of each utterance.

        Args:
            loglikes: For each utterance frames x `needed` states.
            moves: Log scores of the topology's moves.
            silence: The probability of silence between words.
            scale: What log-likelihoods are multiplied by.
        """
        taken = np.array([0.0, np.log(silence), np.log1p(-silence)])  # by -1, wraps to the last
        scores = _Scores(self, loglikes, moves, taken, scale)
        everything = np.ones(len(self._lengths), dtype=bool)
        node, reached = self._search(scores, everything, BEAM)
        if not reached.all():
            others, found = self._search(scores, ~reached, _NO_BEAM)
            again = np.repeat(~reached, self._lengths)
            node[again] = others[again]
            reached |= found
        return self._result(node, reached, moves.shape)

    def _search(
        self, scores: _Scores, wanted: NDArray[np.bool_], beam: float
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """The node of each frame of some utterances, and which of them have a path."""
        live = np.flatnonzero(wanted)
        last = np.zeros(len(wanted), dtype=np.int64)
        reached = np.zeros(len(wanted), dtype=bool)
        # At first nodes in which a path may begin, and what follows them within a stride.
        owner = np.searchsorted(self._first, self._begin, side="right") - 1
        far = self._first[:-1].copy()
        np.maximum.at(far, owner, self._begin)
        window = _Window(live, self._first[live], self._reach[far[live]] + 1)
        alpha = np.full(window.size + 1, -np.inf)
        begins = wanted[owner]
        alpha[window.place(self._begin[begins], owner[begins])] = scores.begin[begins]
        strides: list[_Stride] = []
        for start in range(0, int(self._lengths[live].max()), _STRIDE):
            if start:
                window, alpha = self._next_window(window, alpha, start, beam)
                if not window.size:
                    break
            stride = _Stride(self, scores, window, start)
            strides.append(stride)
            for k in range(_STRIDE):
                alpha = stride.advance(alpha, k)
                for u in window.utterances[self._lengths[window.utterances] == start + k + 1]:
                    edges = slice(*np.searchsorted(scores.out_owner, (u, u + 1)))
                    sources = self._out.source[edges]
                    ends = alpha[window.place(sources, u)] + scores.out[edges]
                    best = int(np.argmax(ends))
                    last[u], reached[u] = sources[best], np.isfinite(ends[best])
        return self._trace(strides, last, reached), reached

    def _next_window(
        self, window: _Window, alpha: Floats, start: int, beam: float
    ) -> tuple[_Window, Floats]:
        """What is worth following from here on, and its scores."""
        best = np.maximum.reduceat(alpha[:-1], window.offset[:-1])
        good = np.flatnonzero(alpha[:-1] >= np.repeat(best - beam, window.sizes))
        # Utterances that have ended, and those without any path, are not followed.
        kept = (self._lengths[window.utterances] > start) & np.isfinite(best)
        first = good[np.searchsorted(good, window.offset[:-1][kept])]
        final = good[np.searchsorted(good, window.offset[1:][kept]) - 1]
        begin = window.node[first] - self._local[window.node[first]]
        chosen = _Window(window.utterances[kept], begin, self._reach[window.node[final]] + 1)
        scores = np.append(alpha[window.place(chosen.node, chosen.owner)], -np.inf)
        return chosen, scores

    def _trace(self, strides: Sequence[_Stride], last: Ints, reached: NDArray[np.bool_]) -> Ints:
        starts = np.cumsum([0, *self._lengths])
        node = np.zeros(starts[-1], dtype=np.int64)
        now = last.copy()
        for stride in reversed(strides):
            for k in range(_STRIDE - 1, -1, -1):
                t = stride.start + k
                live = np.flatnonzero(reached & (self._lengths > t))
                at = now[live]
                node[starts[live] + t] = at
                if t:
                    choice = stride.choice[k, stride.window.place(at, live)]
                    now[live] = self._in.source[self._edge[at] + choice]
        return node

    def _result(
        self, node: Ints, reached: NDArray[np.bool_], shape: tuple[int, ...]
    ) -> ViterbiResult:
        after = np.append(self._instance[node][1:], -1)
        move = np.where(after == self._instance[node], np.append(self._local[node][1:], 0), EXIT)
        move[np.cumsum(self._lengths) - 1] = EXIT
        good = np.repeat(reached, self._lengths)
        chosen = node[good]
        cells = np.ravel_multi_index((self._phone[chosen], self._local[chosen], move[good]), shape)
        counts = np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)
        left = (move == EXIT) & good & self._gap[self._instance[node]]
        columns, ends = self._column[node], np.cumsum(self._lengths)[:-1]
        states = [n[c] for n, c in zip(self.needed, np.split(columns, ends), strict=True)]
        return ViterbiResult(
            states=np.concatenate(states),
            words=self._word[self._instance[node]],
            reached=reached,
            moves=counts.astype(np.float64),
            silences=int(left.sum()),
        )


@dataclass(frozen=True, eq=False)
class _Edges:
    """The node that each edge leaves, its move, and what it does about silence."""

    source: NDArray[np.int32]
    move: NDArray[np.int8]
    silence: NDArray[np.int8]


class _Scores:
    """What frames and edges score in one search."""

    def __init__(
        self,
        batch: GraphBatch,
        loglikes: Sequence[Frames],
        moves: Floats,
        taken: Floats,
        scale: float,
    ) -> None:
        def cost(edges: _Edges) -> Floats:
            phone, local = batch._phone[edges.source], batch._local[edges.source]
            return np.asarray(moves[phone, local, edges.move] + taken[edges.silence])

        self.edges, self.out = cost(batch._in), cost(batch._out)
        self.out_owner = np.searchsorted(batch._first, batch._out.source, side="right") - 1
        self.begin = np.where(batch._begin_silent, taken[1], taken[-1])
        self.flat = np.concatenate([like.ravel() for like in loglikes])
        self.flat *= np.float32(scale)
        self.first = np.cumsum([0] + [like.size for like in loglikes])
        self.width = np.array([like.shape[1] for like in loglikes])


class _Window:
    """Some nodes of each utterance that is followed, one utterance after the other."""

    def __init__(self, utterances: Ints, begin: Ints, end: Ints) -> None:
        self.utterances = utterances
        self.sizes = end - begin
        self.offset = np.cumsum([0, *self.sizes])
        self.size = int(self.offset[-1])
        self.owner = np.repeat(utterances, self.sizes)
        most = int(utterances[-1]) + 1 if len(utterances) else 0
        self._shift, self._begin, self._end = (np.zeros(most, dtype=np.int64) for _ in range(3))
        self._shift[utterances] = begin - self.offset[:-1]
        self._begin[utterances], self._end[utterances] = begin, end
        self.node = np.arange(self.size) + self._shift[self.owner]

    def place(self, node: NDArray[Any], owner: Any) -> Ints:
        """Where nodes of utterances are; `size` if they are outside."""
        inside = (node >= self._begin[owner]) & (node < self._end[owner])
        return np.where(inside, node - self._shift[owner], self.size)


class _Stride:
    """The frames from one choice of a window to the next."""

    def __init__(self, batch: GraphBatch, scores: _Scores, window: _Window, start: int) -> None:
        self.start, self.window = start, window
        self.choice = np.zeros((_STRIDE, window.size), dtype=np.int16)
        edge = batch._edge[window.node]
        count = batch._edge[window.node + 1] - edge
        # The first edge of every node leads from itself, and nearly all have a second one.
        self._stay = scores.edges[edge]
        self._second = self._row(batch, scores, np.arange(window.size), edge + (count > 1))
        self._second[0][count < 2] = window.size
        self._others = []
        for r in range(2, int(count.max())):
            at = np.flatnonzero(count > r)
            source, score = self._row(batch, scores, at, edge[at] + r)
            used = source < window.size
            if used.any():
                self._others.append((r, at[used], source[used], score[used]))
        width = scores.width[window.owner]
        at = scores.first[window.owner] + batch._column[window.node] + start * width
        index = at + np.arange(_STRIDE)[:, None] * width
        # Beyond the end of an utterance these are frames of another one, which do no harm.
        self._likes = scores.flat.take(index, mode="clip")
        self._value = np.empty(window.size)
        self._better = np.empty(window.size, dtype=bool)

    def _row(self, batch: GraphBatch, scores: _Scores, at: Ints, edge: Ints) -> tuple[Ints, Floats]:
        """Where edges into some of the window's nodes come from, and what they score."""
        return self.window.place(batch._in.source[edge], self.window.owner[at]), scores.edges[edge]

    def advance(self, alpha: Floats, k: int) -> Floats:
        """The scores of the window's nodes, and one more that is never reached."""
        made = np.full_like(alpha, -np.inf)
        best = made[:-1]
        if self.start or k:
            source, score = self._second
            value, better, choice = self._value, self._better, self.choice[k]
            np.add(alpha[:-1], self._stay, out=best)
            np.take(alpha, source, out=value, mode="clip")
            value += score
            np.greater(value, best, out=better)
            choice[:] = better
            np.maximum(value, best, out=best)
            for r, target, source, score in self._others:
                other = alpha[source] + score
                won = other > best[target]
                winners = target[won]
                best[winners] = other[won]
                choice[winners] = r
        else:
            best[:] = alpha[:-1]
        best += self._likes[k]
        return made


def _joined(arrays: Iterable[NDArray[Any]], kind: type = np.int64) -> NDArray[Any]:
    return np.concatenate(list(arrays)).astype(kind)
