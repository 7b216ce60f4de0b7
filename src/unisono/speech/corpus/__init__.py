"""Data directories: utterances, transcripts, lexicon, word times, and what is excluded and why."""

from __future__ import annotations
