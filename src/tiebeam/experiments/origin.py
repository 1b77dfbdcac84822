"""What made a run: versions of packages, and the commit of tiebeam's sources where they lie in a repository."""

import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from tiebeam.api.versions import versions
from tiebeam.experiments.spec import Experiment


def packages(experiment: Experiment) -> Mapping[str, str]:
    """Versions of Python, tiebeam, NumPy and what the experiment runs on."""
    return versions(experiment.packages)


@lru_cache
def commit() -> str:
    """The commit of tiebeam's sources, "+" behind it where they were changed since; "" where there is none."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", "--error-unmatch", Path(__file__).name):
            return ""  # installed below someone else's repository
        head = git("rev-parse", "HEAD")
        return head + ("+" if head and git("status", "--porcelain", "--", str(here.parent)) else "")
    except (OSError, subprocess.TimeoutExpired):
        return ""
