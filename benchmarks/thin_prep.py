"""Every nth utterance of a PREP, for curves on less data: ``thin_prep.py PREP OUT --every 4``."""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

import numpy as np

from unisono.data import Prep
from unisono.data.corpus import Corpus
from unisono.data.prep import write_prep


def thin(prep: Prep, out: Path, every: int) -> Prep:
    """Writes every ``every``-th utterance, each in the part and of the speaker that it had."""
    table, starts = prep.table, prep.starts
    chosen = range(0, len(table.id), every)
    frames = [prep.frames[starts[u] : starts[u + 1]] for u in chosen]
    states = [prep.states[starts[u] : starts[u + 1]] for u in chosen]
    shift = prep.header.frame_shift_s
    corpus = Corpus(
        origin=f"every {every}th utterance of {prep.path.name}",
        frames=np.concatenate(frames),
        states=np.concatenate(states),
        starts=np.cumsum([0, *(len(f) for f in frames)]),
        utterances=[table.id[u] for u in chosen],
        speakers=[table.speakers[table.speaker[u]] for u in chosen],
        parts=[table.part[u] for u in chosen],
        state_count=prep.header.states,
        frame_shift=None if shift is None else timedelta(seconds=shift),
    )
    return write_prep(out, corpus, {"every": every, "of": prep.fingerprint})


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prep", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--every", type=int, default=4)
    options = parser.parse_args()
    made = thin(Prep.open(options.prep), options.out, options.every)
    print(f"{made.path}: {made.header.utterances:,} utterances, {made.header.frames:,} frames")


if __name__ == "__main__":
    main()
