"""What tests of several packages share."""

from __future__ import annotations
