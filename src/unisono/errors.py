"""What the packages tell each other without importing each other: errors that a user sees."""

from __future__ import annotations


class UserError(Exception):
    """Something that the user can mend. The text is one line: what, where, and what to do."""
