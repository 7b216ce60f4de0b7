"""Language models: n-grams estimated from text, written and read as ARPA files."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import read_lines

BEGIN = "<s>"
END = "</s>"
# The log10 of what never happens, as ARPA files have it. Costs beyond it would overflow.
_NEVER = -99.0
_SHOWN = 3

Gram = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NgramModel:
    """A back-off language model.

    Attributes:
        tables: Table n - 1 has the n-grams: log10 of the last word's probability after the
            others, and log10 of the weight by which probabilities of shorter n-grams are
            multiplied after this one.
    """

    tables: list[dict[Gram, tuple[float, float]]]

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.tables)

    def log10(self, word: str, history: Sequence[str]) -> float:
        """The log10 probability of a word after others."""
        after = tuple(history[max(0, len(history) - self.order + 1) :])
        weight = 0.0
        while True:
            found = self.tables[len(after)].get((*after, word))
            if found is not None:
                return weight + found[0]
            if not after:
                return -math.inf
            weight += self.tables[len(after) - 1].get(after, (0.0, 0.0))[1]
            after = after[1:]

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> float:
        """Two to the mean surprise a word in bits, the end of each sentence counted."""
        total, count = 0.0, 0
        for sentence in sentences:
            words = [BEGIN, *sentence, END]
            for at in range(1, len(words)):
                total += self.log10(words[at], words[:at])
                count += 1
        return float(10 ** (-total / max(count, 1)))

    def with_order(self, order: int) -> NgramModel:
        """The model of the n-grams up to a length."""
        tables = self.tables[:order]
        last = {gram: (value, 0.0) for gram, (value, _) in tables[-1].items()}
        return NgramModel(tables=[*tables[:-1], last])

    def restricted_to(self, words: Collection[str]) -> NgramModel:
        """The n-grams whose words are all among some words.

        Raises:
            UserError: None is left.
        """
        known = {BEGIN, END, *words}
        tables = [{g: v for g, v in table.items() if known.issuperset(g)} for table in self.tables]
        if not any(gram[0] not in (BEGIN, END) for gram in tables[0]):
            raise UserError("the language model and the lexicon have no word in common")
        return NgramModel(tables=tables)

    def write(self, path: Path) -> None:
        """Writes an ARPA file."""
        lines = ["\\data\\"]
        lines += [f"ngram {n}={len(table)}" for n, table in enumerate(self.tables, start=1)]
        for n, table in enumerate(self.tables, start=1):
            lines += ["", f"\\{n}-grams:"]
            for gram, (value, backoff) in sorted(table.items()):
                tail = f"\t{backoff:.6f}" if backoff and n < self.order else ""
                lines.append(f"{value:.6f}\t{' '.join(gram)}{tail}")
        path.write_text("\n".join([*lines, "", "\\end\\", ""]), encoding="utf-8")


def estimate_ngrams(
    sentences: Iterable[Sequence[str]], words: Collection[str], order: int
) -> NgramModel:
    """Estimates n-grams, interpolated after Witten and Bell.

    With N(h) words seen after h, T(h) different ones, and h' = h without its first word,

        p(w | h) = (c(h w) + T(h) p(w | h')) / (N(h) + T(h)),

    and below the unigrams all words and the end of a sentence are equally likely. What was not
    seen after h thus gets T(h) / (N(h) + T(h)) times p(w | h'): the back-off weight, exactly.

    Args:
        sentences: The text; words outside `words` are left out of it.
        words: All words that the model shall know, seen or not.
        order: The length of the longest n-grams.
    """
    known = set(words)
    after: dict[Gram, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        sequence = [BEGIN, *(word for word in sentence if word in known), END]
        for at in range(1, len(sequence)):
            for length in range(min(order, at + 1)):
                after[tuple(sequence[at - length : at])][sequence[at]] += 1
    tables: list[dict[Gram, tuple[float, float]]] = [{} for _ in range(order)]
    even = 1 / (len(known) + 1)
    probability: dict[Gram, float] = {}
    for word in (*known, END):
        probability[(word,)] = _share(after[()], word, even)
    for history in sorted((h for h in after if h), key=len):
        for word in after[history]:
            gram = (*history, word)
            probability[gram] = _share(after[history], word, probability[gram[1:]])
    for gram, value in probability.items():
        tables[len(gram) - 1][gram] = math.log10(value), _backoff(after.get(gram))
    tables[0][(BEGIN,)] = _NEVER, _backoff(after.get((BEGIN,)))
    return NgramModel(tables=tables)


def _share(counts: Counter[str], word: str, shorter: float) -> float:
    seen, kinds = counts.total(), len(counts)
    return (counts[word] + kinds * shorter) / (seen + kinds) if kinds else shorter


def _backoff(counts: Counter[str] | None) -> float:
    return math.log10(len(counts) / (counts.total() + len(counts))) if counts else 0.0


def read_arpa(path: Path) -> NgramModel:
    r"""Reads an ARPA file; what comes before \data\ is skipped.

    Raises:
        UserError: It cannot be read, or is no ARPA file.
    """
    lines = read_lines(path)
    if "\\data\\" not in lines:
        raise UserError(f"{path} is not an ARPA language model: it has no \\data\\ line")
    tables: list[dict[Gram, tuple[float, float]]] = []
    for line in lines[lines.index("\\data\\") + 1 :]:
        if line == "\\end\\":
            break
        if line == f"\\{len(tables) + 1}-grams:":
            tables.append({})
        elif line.startswith("\\"):
            raise UserError(f"{path}: {line!r} comes where \\{len(tables) + 1}-grams: should")
        elif tables:
            gram, value = _entry(path, line, len(tables))
            tables[-1][gram] = value
        elif not line.startswith("ngram "):
            raise UserError(f"{path}: {line!r} is not 'ngram N=COUNT'")
    else:
        raise UserError(f"{path} ends early: it has no \\end\\ line")
    if not tables or not tables[0]:
        raise UserError(f"{path} holds no unigrams")
    if (END,) not in tables[0]:
        raise UserError(f"{path} has no unigram {END}: no sentence could end")
    return NgramModel(tables=tables)


def read_language_model(
    path: Path, words: Collection[str], log: Callable[[str], None]
) -> NgramModel:
    """Reads an ARPA file, less the n-grams with words outside a lexicon, and says so.

    Args:
        path: The file.
        words: Those of the lexicon.
        log: Takes a line where some are left out.

    Raises:
        UserError: It cannot be read, is no ARPA file, or has no word of the lexicon.
    """
    whole = read_arpa(path)
    strange = sorted({word for (word,) in whole.tables[0]} - {BEGIN, END, *words})
    if strange:
        more = ", ..." if len(strange) > _SHOWN else ""
        shown = ", ".join(strange[:_SHOWN])
        log(f"{path}: {len(strange)} words are left out, not being in the lexicon: {shown}{more}")
    return whole.restricted_to(words)


def _entry(path: Path, line: str, length: int) -> tuple[Gram, tuple[float, float]]:
    fields = line.split()
    try:
        if not length + 1 <= len(fields) <= length + 2:
            raise ValueError
        value = float(fields[0])
        backoff = float(fields[length + 1]) if len(fields) == length + 2 else 0.0
        if not (value <= 0 and abs(backoff) <= -_NEVER):
            raise ValueError
    except ValueError:
        raise UserError(f"{path}: {line!r} is not a {length}-gram with its log10s") from None
    return tuple(fields[1 : length + 1]), (max(value, _NEVER), backoff)
