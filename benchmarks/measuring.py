"""How the benchmarks measure: interleaved runs, medians, peaks of fresh processes, one table."""

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: idle threads must not eat a core

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@dataclass(frozen=True)
class Row:
    """One figure and the most it may be.

    Attributes:
        goal: None where the figure is for information.
    """

    what: str
    figure: float
    goal: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.figure > self.goal


def show(title: str, rows: Sequence[Row]) -> int:
    """Print the table; the number of goals that were missed."""
    print(f"\n{title}")
    head = ("what", "figure", "goal", "")
    cells = [
        (
            r.what,
            f"{r.figure:.2f}{r.unit}",
            "-" if r.goal is None else f"{r.goal:g}{r.unit}",
            ("missed " if r.missed else "") + r.note,
        )
        for r in rows
    ]
    wide = [max(len(c[i]) for c in (head, *cells)) for i in range(3)]
    for a, b, c, d in (head, *cells):
        print(f"  {a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}  {d}".rstrip())
    return sum(r.missed for r in rows)


def medians(runs: int, *works: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Median seconds of each, run in turn so that a busy machine slows all alike, after one warm-up.

    Args:
        clock: `time.process_time` counts what this process computed, `time.thread_time` what this thread did, whatever
            others do meanwhile.
    """
    for work in works:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(runs):
        for taken, work in zip(seconds, works, strict=True):
            start = clock()
            work()
            taken.append(clock() - start)
    return [statistics.median(taken) for taken in seconds]


def keep_heap() -> None:
    """Let this process keep the memory that it frees, where its C library is glibc.

    Whether glibc hands memory back once it is freed, and each page of it has to be asked for again, hangs on how the
    heap happens to lie: of two equal processes one spends a tenth of a short run on it, and the other nothing.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, 1 << 30)


def peak_above(work: Callable[[], object]) -> float | None:
    """MiB by which this process's resident memory rises above its present size while `work` runs.

    Measure in a fresh process: memory that an allocator has kept from earlier work hides what is used
    again. None where the system cannot reset its high-water mark (elsewhere than on Linux).
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))
