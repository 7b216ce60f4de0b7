"""Audio and acoustic features: filterbank, MFCC, PLP, pitch, CMVN, and Kaldi feature archives."""

from __future__ import annotations
