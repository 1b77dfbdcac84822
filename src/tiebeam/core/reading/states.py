"""What a walk knows at a value, and where it ended."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from tiebeam.core.reading.numbers import ONE, Factor
from tiebeam.core.reading.switches import NO_DROPOUT, Dropping


@dataclass(frozen=True, slots=True)
class State:
    """What the walk knows at one value.

    Attributes:
        factor: Product so far; after a cap the amplitude alone.
        axis: Where the vocabulary axis stands (readouts), or -1.
        cap: "tanh" or "sigmoid" once a soft cap was met, with its inner slope in `inner`.
        shift: Constant added to the signal so far.
        dropping: Where it stands within a dropout.
        told: The last value whose numbers are the signal and what was added to it: behind a soft cap, a mask or a
            bias they are not. -1 is the start.
        since: What the signal was multiplied by since then.
        held: Why no later value is: "bias" for one that `initialize` sets to zero, "other", or "".
        past, after: As `told` and `since`, with such a bias in it: a product and a bias may be one operation.
    """

    factor: Factor = ONE
    axis: int = -1
    cap: str = ""
    inner: Factor = ONE
    shift: float = 0.0
    dropping: Dropping = NO_DROPOUT
    told: int = -1
    since: Factor = ONE
    held: Literal["", "bias", "other"] = ""
    past: int = -1
    after: Factor = ONE

    def times(self, by: Factor) -> "State":
        """The same, multiplied."""
        return replace(self, factor=self.factor.times(by), since=self.since.times(by), after=self.after.times(by))

    def at(self, value: int) -> "State":
        """The same, having come to a value."""
        state = self if self.held else replace(self, told=value, since=ONE)
        return state if self.held == "other" else replace(state, past=value, after=ONE)

    def total(self) -> Factor:
        """The factor at signal 0, slope of the cap included."""
        return self.factor.times(self.inner).times(Factor(self.slope())) if self.cap else self.factor

    def slope(self) -> float:
        """That of the cap at signal 0; 1 without one."""
        if self.cap == "sigmoid":
            p = 1.0 / (1.0 + math.exp(-self.shift))
            return p * (1.0 - p)
        return 1.0 - math.tanh(self.shift) ** 2 if self.cap else 1.0

    def soft_cap(self) -> float | None:
        if not self.cap or self.factor.value is None:
            return None
        return abs(self.factor.value) * (1.0 if self.cap == "tanh" else 0.5)


@dataclass(slots=True)
class Walk:
    """Where a forward walk ended.

    Attributes:
        ends: (value, state) of every end.
        biases: Leaf names over the vocabulary that were added.
        added: Values that were added and depend on the inputs (an adapter's product, for one).
    """

    ends: list[tuple[int, State]] = field(default_factory=list)
    biases: list[str] = field(default_factory=list)
    added: list[int] = field(default_factory=list)

    def factor(self) -> Factor:
        totals = [s.total() for _, s in self.ends]
        return agreed(totals)

    def soft_cap(self) -> float | None:
        caps = {s.soft_cap() for _, s in self.ends}
        return caps.pop() if len(caps) == 1 else None


def agreed(factors: list[Factor]) -> Factor:
    """The factor that all agree on, or None with the reason."""
    if not factors:
        return ONE
    first = factors[0]
    unknown = next((f for f in factors if f.value is None), None)
    if unknown is not None:
        return unknown
    literals = frozenset[int]().union(*(f.literals for f in factors))
    if any(not math.isclose(f.value or 0.0, first.value or 0.0, rel_tol=1e-9) for f in factors):
        values = ", ".join(dict.fromkeys(f"{f.value:.6g}" for f in factors))
        return Factor(None, f"uses differ: {values}", literals)
    return replace(first, literals=literals)
