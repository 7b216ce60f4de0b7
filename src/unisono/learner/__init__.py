"""The step that every strategy shares, and the object in the user's loop."""

from __future__ import annotations
