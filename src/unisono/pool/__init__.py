"""Leases over positions: assignment, draw, commit, return, seek."""

from __future__ import annotations
