"""What a target on the command line becomes: a model, and how it was built."""

import difflib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A model, ready to be looked at.

    Attributes:
        model: Whatever the public calls accept.
        inputs: Example inputs, or None to have them made.
        params: What a JAX model that holds no arrays is applied to, or None.
        weights: Where the weights come from: "file" (trained, perhaps), "random", "meta" or "code".
        notes: What the user should know about how it was built.
    """

    model: Any
    inputs: Any = None
    weights: str = "code"
    notes: tuple[str, ...] = ()
    params: Any = None


def near(name: str, known: list[str]) -> str:
    """A hint that names what may have been meant, or "" where nothing is close.

    Example:
        >>> near("gtp2", ["gpt2", "llama"])
        "did you mean 'gpt2'?"
    """
    lowered = {k.lower(): k for k in known}
    close = [lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)]
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""
