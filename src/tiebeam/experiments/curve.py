"""How one training went: plain frozen data, no framework."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """How one training went.

    Attributes:
        train: Loss of each step's batch before its update. Unit: nats.
        validation: (steps done, mean loss on held-out windows), from 0 to the last step.
        seconds: Time taken, validation included.
    """

    train: tuple[float, ...]
    validation: tuple[tuple[int, float], ...]
    seconds: float

    @property
    def initial_loss(self) -> float:
        """Validation loss before training. Unit: nats."""
        return self.validation[0][1]

    @property
    def final_loss(self) -> float:
        """Validation loss after the last step. Unit: nats."""
        return self.validation[-1][1]

    def first_below(self, loss: float) -> int | None:
        """Return the steps done when validation was first at or below `loss`; None if never.

        Example:
            >>> Curve((), ((0, 9.0), (10, 5.0), (20, 4.0)), 1.0).first_below(5.5)
            10
        """
        return next((step for step, value in self.validation if value <= loss), None)
