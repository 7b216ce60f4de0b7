"""Learners inside the training loops of other frameworks; each module needs its framework."""
