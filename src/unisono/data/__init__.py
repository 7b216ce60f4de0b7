"""PREP, frames with their context, chunks, utterances, and frames made on the spot."""

from __future__ import annotations

from unisono.data.chunks import UNLABELLED, ChunkSource
from unisono.data.convert import convert_frames
from unisono.data.corpus import Corpus
from unisono.data.frames import FrameSource
from unisono.data.prep import Prep, write_prep
from unisono.data.source import Source
from unisono.data.spec_augment import SpecAugment
from unisono.data.split import Part, halve, hold_out
from unisono.data.synthetic import synthesise
from unisono.data.utterances import UtteranceSource, long_enough

__all__ = [
    "UNLABELLED",
    "ChunkSource",
    "Corpus",
    "FrameSource",
    "Part",
    "Prep",
    "Source",
    "SpecAugment",
    "UtteranceSource",
    "convert_frames",
    "halve",
    "hold_out",
    "long_enough",
    "synthesise",
    "write_prep",
]
