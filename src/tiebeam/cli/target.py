"""What a target on the command line becomes: a model, and how it was built."""

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
