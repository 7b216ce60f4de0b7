"""How an activity is woken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unisono.fabric.simulated.kernel import Kernel


class Waiter:
    """One activity's wait: the first wake counts, later ones do nothing."""

    __slots__ = ("_activity", "_kernel", "fired", "target")

    def __init__(self, kernel: Kernel, activity: Any) -> None:
        self._kernel = kernel
        self._activity = activity
        self.fired = False
        self.target: Waiter | None = None

    def wake(self) -> None:
        """Makes the activity runnable."""
        if not self.fired:
            self.fired = True
            self._kernel.run_soon(self._activity)

    def resume(self) -> Any:
        """As a timer: the activity goes on at once."""
        if self.fired:
            return None
        self.fired = True
        return self._activity

    def fire(self) -> None:
        """As a timer: notes that time is up, and wakes the wait that it belongs to."""
        self.fired = True
        if self.target is not None:
            self.target.wake()
