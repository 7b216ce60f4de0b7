"""Pronunciations of words that a lexicon lacks, from the spelling and phones of those it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unisono.speech.corpus.lexicon import Lexicon, Pronunciation
from unisono.speech.graph.language_model import BEGIN, END, NgramModel, estimate_ngrams

_ORDER = 5
_ITERATIONS = 8
_BEAM = 40
_MOST_LETTERS = 100
# How likely a letter is said as no, one and two phones before anything is known of it.
_FIRST_GUESS = (0.1, 1.0, 0.05)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GraphemeToPhoneme:
    """A joint n-gram model of letters and phones (Bisani and Ney 2008).

    A letter with the phones that it is said as, none, one or two, is a graphone g. Of all
    sequences of graphones that spell a word the most probable one is its pronunciation, with

        p(g_1 .. g_L) = prod_i p(g_i | g_(i-4) .. g_(i-1)),

    n-grams interpolated after Witten and Bell. The words of the lexicon are divided into graphones
    by the most probable alignment under p(phones | letter), which EM estimates without context.

    Attributes:
        ngrams: The n-grams of graphones.
        graphones: Those of each letter.
    """

    ngrams: NgramModel
    graphones: Mapping[str, Sequence[tuple[str, Pronunciation]]]

    @classmethod
    def train(cls, lexicon: Lexicon) -> GraphemeToPhoneme:
        """Learns from the words of a lexicon that are speech."""
        spoken = lexicon.speech_words
        pairs = [(word, phones) for word in sorted(spoken) for phones in lexicon.entries[word]]
        known: dict[str, dict[str, Pronunciation]] = defaultdict(dict)
        sequences = []
        for word, said in _align(pairs):
            sequence = []
            for letter, phones in zip(word, said, strict=True):
                name = f"{letter}:{' '.join(phones)}"
                known[letter][name] = phones
                sequence.append(name)
            sequences.append(sequence)
        names = [name for graphones in known.values() for name in graphones]
        graphones = {letter: sorted(found.items()) for letter, found in known.items()}
        return cls(estimate_ngrams(sequences, names, _ORDER), graphones)

    def pronounce(self, word: str) -> Pronunciation | None:
        """The most probable pronunciation that a beam finds.

        None where a letter is in no word of the lexicon, or no letter would be heard.
        """
        if not set(word).issubset(self.graphones):
            return None
        beam: dict[tuple[str, ...], tuple[float, Pronunciation]] = {(BEGIN,): (0.0, ())}
        for letter in word:
            longer: dict[tuple[str, ...], tuple[float, Pronunciation]] = {}
            for history, (score, said) in beam.items():
                for name, phones in self.graphones[letter]:
                    after = (*history, name)[1 - self.ngrams.order :]
                    total = score + self.ngrams.log10(name, history)
                    if after not in longer or total > longer[after][0]:
                        longer[after] = total, (*said, *phones)
            best = sorted(longer.items(), key=lambda item: -item[1][0])[:_BEAM]
            beam = dict(best)
        ends = [(score + self.ngrams.log10(END, h), said) for h, (score, said) in beam.items()]
        return max((end for end in ends if end[1]), default=(0.0, None), key=lambda e: e[0])[1]


@dataclass(frozen=True)
class _Group:
    """W words of L letters and P phones, as the numbers of the graphones that they may hold.

    Attributes:
        words: Which words.
        choices: Numbers of the graphones of letter i with no phone, W x L x P + 1, with phone j,
            W x L x P, and with phones j and j + 1, W x L x P - 1.
    """

    words: list[int]
    choices: list[Ints]


def _align(pairs: Sequence[tuple[str, Pronunciation]]) -> Iterator[tuple[str, list[Pronunciation]]]:
    """Yields words with the phones of each letter; those that cannot be aligned are left out."""
    groups, weights, letters = _group(pairs)
    for _ in range(_ITERATIONS):
        counts = np.zeros_like(weights)
        for group in groups:
            _count(group, weights, counts)
        totals = np.bincount(letters, counts)[letters]
        weights = counts / np.where(totals > 0, totals, 1.0)
    aligned: dict[int, list[Pronunciation]] = {}
    for group in groups:
        for n, lengths in zip(group.words, _best_lengths(group, weights).tolist(), strict=True):
            phones, at = pairs[n][1], np.cumsum([0, *lengths])
            aligned[n] = [phones[at[i] : at[i + 1]] for i in range(len(lengths))]
    for n in sorted(aligned):
        yield pairs[n][0], aligned[n]


def _group(pairs: Sequence[tuple[str, Pronunciation]]) -> tuple[list[_Group], Floats, Ints]:
    """The words by length, the first weight of each graphone, and its letter."""
    letters = {letter: n for n, letter in enumerate(sorted({c for word, _ in pairs for c in word}))}
    phones = {phone: n for n, phone in enumerate(sorted({p for _, said in pairs for p in said}), 1)}
    base = len(phones) + 1
    by_length: dict[tuple[int, int], list[int]] = defaultdict(list)
    for n, (word, said) in enumerate(pairs):
        if len(said) <= 2 * len(word) and len(word) <= _MOST_LETTERS:
            by_length[len(word), len(said)].append(n)
    keys = [
        _keys(
            np.array([[letters[c] for c in pairs[n][0]] for n in members]),
            np.array([[phones[p] for p in pairs[n][1]] for n in members]),
            base,
        )
        for members in by_length.values()
    ]
    arrays = [array.ravel() for group in keys for array in group]
    known = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *arrays]))
    groups = [
        _Group(members, [np.searchsorted(known, array) for array in group])
        for members, group in zip(by_length.values(), keys, strict=True)
    ]
    heard = (known // base % base > 0).astype(np.int64) + (known % base > 0)
    return groups, np.array(_FIRST_GUESS)[heard], known // base**2


def _keys(letters: Ints, phones: Ints, base: int) -> list[Ints]:
    """A number for each letter, W x L, with none, one and two of the phones, W x P, in a row."""
    spelt, said = letters[:, :, None], phones[:, None, :]
    none = np.zeros((1, 1, phones.shape[1] + 1), dtype=np.int64)
    ones, pairs = (said, np.zeros_like(said)), (said[..., :-1], said[..., 1:])
    return [(spelt * base + first) * base + second for first, second in ((none, none), ones, pairs)]


def _count(group: _Group, weights: Floats, counts: Floats) -> None:
    """Adds the expected number of times that each graphone occurs (forward and backward)."""
    factors = [weights[choice] for choice in group.choices]
    words, length, places = factors[0].shape
    before = np.zeros((words, length + 1, places))
    behind = np.zeros_like(before)
    before[:, 0, 0] = behind[:, length, -1] = 1.0
    for i in range(length):
        for heard, factor in enumerate(factors):
            stop = places - heard
            before[:, i + 1, heard:] += before[:, i, :stop] * factor[:, i]
    for i in reversed(range(length)):
        for heard, factor in enumerate(factors):
            stop = places - heard
            behind[:, i, :stop] += behind[:, i + 1, heard:] * factor[:, i]
    total = before[:, length, -1][:, None, None]
    share = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
    for heard, (factor, choice) in enumerate(zip(factors, group.choices, strict=True)):
        stop = places - heard
        times = before[:, :-1, :stop] * factor * behind[:, 1:, heard:] * share
        counts += np.bincount(choice.ravel(), times.ravel(), minlength=len(counts))


def _best_lengths(group: _Group, weights: Floats) -> Ints:
    """How many phones each letter has in the best alignment of each word, W x L (Viterbi)."""
    with np.errstate(divide="ignore"):
        factors = [np.log(weights[choice]) for choice in group.choices]
    words, length, places = factors[0].shape
    best = np.full((words, places), -np.inf)
    best[:, 0] = 0.0
    chosen = np.zeros((words, length, places), dtype=np.int64)
    for i in range(length):
        scores = np.full((3, words, places), -np.inf)
        for heard, factor in enumerate(factors):
            scores[heard, :, heard:] = best[:, : places - heard] + factor[:, i]
        chosen[:, i], best = scores.argmax(0), scores.max(0)
    lengths = np.zeros((words, length), dtype=np.int64)
    at = np.full(words, places - 1)
    for i in reversed(range(length)):
        lengths[:, i] = chosen[np.arange(words), i, at]
        at -= lengths[:, i]
    return lengths
