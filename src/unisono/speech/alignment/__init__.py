"""GMM-HMM training and forced alignment: monophones, decision trees, tied triphones."""

from __future__ import annotations
