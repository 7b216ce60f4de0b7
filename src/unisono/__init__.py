"""Unisono: many machines, one voice. Choose with one word how the learners agree."""

from __future__ import annotations
