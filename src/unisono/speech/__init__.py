"""Speech: from a Kaldi data directory to aligned frames, and from a model to words.

The packages of the `speech` extra are imported where they are used, never here: training on
prepared data needs none of them.
"""

from __future__ import annotations
