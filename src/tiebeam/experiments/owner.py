"""Who has claimed a run: a process by machine, number and time of its start, for numbers are used again."""

import os
import socket
from functools import lru_cache
from pathlib import Path


def this_process() -> str:
    """Name of this process, as `alive` reads it.

    Example:
        >>> alive(this_process())
        True
    """
    return f"{_machine()}/{os.getpid()}/{_start_of(os.getpid())}"


def alive(owner: str, *, elsewhere: bool = True) -> bool:
    """Whether a process is still there; `elsewhere` is what counts for one on another machine, unseen from here.

    Example:
        >>> machine, number, _ = this_process().split("/")
        >>> alive(f"{machine}/{number}/another start"), alive("elsewhere/1/0")
        (False, True)
    """
    machine, number, start = owner.split("/")
    if machine != _machine():
        return elsewhere
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # someone else's, but there
    return _start_of(int(number)) == start


@lru_cache
def _machine() -> str:
    return socket.gethostname().replace("/", "-")


@lru_cache
def _boot() -> str:
    kept = Path("/proc/sys/kernel/random/boot_id")  # ticks count from the start of the machine
    return kept.read_text().strip() if kept.is_file() else ""


def _start_of(number: int) -> str:
    """When a process began, in the kernel's ticks; "" where that cannot be seen, or it is a zombie."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "gone" if fields[0] == "Z" else f"{_boot()}+{fields[19]}"
