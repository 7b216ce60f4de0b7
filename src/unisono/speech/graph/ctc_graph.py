"""The decoding graph of a model trained with CTC: blank and phones, lexicon, language model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.dependencies import import_package
from unisono.speech.graph.decoding_graph import (
    load_fst,
    phones_to_words,
    scratch_file,
    word_labels,
)
from unisono.speech.graph.fst import Fst
from unisono.speech.graph.language_model import NgramModel

_BLANK = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class CtcGraphInputs:
    """What a graph is made of.

    Attributes:
        lexicon: Words and their phones.
        language_model: The language model.
        phones: All phones; phone p, from 0, is output p + 1 of the network, output 0 the blank.
    """

    lexicon: Lexicon
    language_model: NgramModel
    phones: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The words by their labels in the graph; label 0 is none."""
        return word_labels(self.lexicon)

    def fingerprint(self) -> str:
        """The sha256 of everything that changes the graph."""
        digest = hashlib.sha256(b"ctc")
        for part in (
            sorted(self.lexicon.entries.items()),
            sorted(self.lexicon.probabilities.items()),
            [sorted(table.items()) for table in self.language_model.tables],
            self.phones,
        ):
            digest.update(repr(part).encode())
        return digest.hexdigest()

    def build(self) -> Fst:
        """Builds the graph: input label = output of the network + 1, output label = word.

        The transducer of paths to phones is composed with that of phones to words. There is no
        optional silence between words: the blank is what a network says in silence.
        """
        kaldifst = import_package("kaldifst")
        with scratch_file() as scratch:
            right = phones_to_words(self.lexicon, self.language_model, self.phones, None, scratch)
            right.write(str(scratch))
            spoken = Fst.read(scratch)
            extra = spoken.input > len(self.phones)
            right = load_fst(replace(spoken, input=np.where(extra, 0, spoken.input)), scratch)
            left = load_fst(ctc_topology(len(self.phones)), scratch)
            kaldifst.arcsort(left, "olabel")
            kaldifst.arcsort(right, "ilabel")
            kaldifst.StdVectorFst(kaldifst.compose(left, right)).write(str(scratch))
            return Fst.read(scratch)


def ctc_topology(phones: int) -> Fst:
    """From paths, a label an output of the network, to phones, from 1.

    In state 0 a blank came last, or nothing yet; in state p phone p did, and reading it again
    says nothing new. So between two equal phones there must be a blank.
    """
    arcs = [(0, 0, _BLANK, 0, 0.0)]
    for phone in range(1, phones + 1):
        label = _BLANK + phone
        arcs += [(phone, phone, label, 0, 0.0), (phone, 0, _BLANK, 0, 0.0)]
        arcs += [(s, phone, label, phone, 0.0) for s in range(phones + 1) if s != phone]
    return Fst.of(arcs, [0.0] * (phones + 1))
