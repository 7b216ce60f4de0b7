"""Membership, the pool, agreements and their journal: what must outlive a learner."""

from __future__ import annotations
