"""How often `prepare --oov g2p` guesses right, on words that are held out of a lexicon.

    python benchmarks/g2p.py LEXICON [--heldout 500] [--sizes 300,1000,10000,0]

Words are drawn at random: first those that are held out, then as many to learn from as each size
says (0: all others). A guess counts by the nearest of a word's pronunciations. CPU seconds.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.dependencies import import_package
from unisono.speech.graph.g2p import GraphemeToPhoneme


def main() -> None:
    """Prints a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lexicon", type=Path)
    parser.add_argument("--heldout", type=int, default=500)
    parser.add_argument("--sizes", default="300,1000,10000,0", help="0: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    edit_distance = import_package("kaldialign").edit_distance
    entries = Lexicon.read(options.lexicon).entries
    words = sorted(entries)
    random.Random(options.seed).shuffle(words)
    heldout, others = words[: options.heldout], words[options.heldout :]
    for size in map(int, options.sizes.split(",")):
        known = others[: size or len(others)]
        begun = time.process_time()
        model = GraphemeToPhoneme.train(Lexicon(entries={word: entries[word] for word in known}))
        trained = time.process_time()
        errors = phones = wrong = 0
        for word in heldout:
            said = list(model.pronounce(word) or ())
            missed, length = min(
                (edit_distance(list(right), said)["total"], len(right)) for right in entries[word]
            )
            errors, phones, wrong = errors + missed, phones + length, wrong + (missed > 0)
        took = time.process_time() - trained
        print(
            f"{len(known):7} words: {errors / phones:.1%} of {phones} phones and "
            f"{wrong / len(heldout):.1%} of {len(heldout)} words wrong; trained in "
            f"{trained - begun:.1f} s, {1000 * took / len(heldout):.0f} ms a word",
            flush=True,
        )


if __name__ == "__main__":
    main()
