"""Membership, the pool, sync rounds and their journal: what must outlive a learner."""

from __future__ import annotations
