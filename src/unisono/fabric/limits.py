"""What this machine lets a process have."""

from __future__ import annotations

import resource

from unisono.errors import UserError

_OWN = 40
"""Files that a process opens for itself: Python, torch, the data, the files of the run."""
_EACH = 8
"""Files for each learner that a process talks to: connections and shared memory."""


def files_needed(learners: int) -> int:
    """Files that one process of a run may have open."""
    return _OWN + _EACH * learners


def require_files(learners: int) -> None:
    """Raises this process' limit of open files as far as a run needs; children inherit it.

    Raises:
        UserError: it may not be raised so far.
    """
    needed = files_needed(learners)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        many = "1 learner" if learners == 1 else f"{learners} learners"
        raise UserError(
            f"a process may have {hard} files open here, and a run of {many} needs {needed}: raise "
            f"the limit (ulimit -Hn {needed}, or LimitNOFILE of the service), or use fewer learners"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
