"""Decoding graphs: lexicon and n-gram language model as weighted finite-state transducers."""

from __future__ import annotations
