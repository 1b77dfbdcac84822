"""What the rules may ask beside the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiebeam.core.facts import Table


class Fixes(Protocol):
    """Python that mends a model of one framework; "" where there is none.

    The code runs with `model`, `inputs` and `tiebeam` in scope.
    """

    def tie(self, owner: str, other: str) -> str:
        """Make the parameter at path `other` the one at path `owner`."""
        ...

    def initialize(self) -> str:
        """Draw the tables anew at their target std."""
        ...

    def scale_lookup(self, where: str, factor: float) -> str:
        """Multiply what the module at `where` looks up."""
        ...

    def train(self, name: str, on: bool) -> str:
        """Make a parameter trainable, or freeze it."""
        ...


@dataclass(frozen=True)
class Context:
    """Facts for the rules.

    Attributes:
        untied_on_purpose: The config says, in so many words, that there is no tie.
        trainable_elsewhere: Share of the other parameters' elements that is trainable.
        body_dtype: Dtype of most of the other parameters, or None.
        silent: The model returned no float tensor.
        devices: Device of module paths by a device map, or empty.
    """

    tables: Sequence[Table]
    fixes: Fixes
    untied_on_purpose: bool = False
    trainable_elsewhere: float = 1.0
    body_dtype: str | None = None
    silent: bool = False
    devices: Mapping[str, str] = field(default_factory=dict)

    def partner(self, table: Table) -> Table | None:
        return next((t for t in self.tables if table.partner is not None and t.name == table.partner), None)
