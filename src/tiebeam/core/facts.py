"""What is known of a table: frozen records that every report, plan and rule is a function of."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["tied", "aliased", "cut", "copy", "drifted", "untied", "unknown"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """One place where rows of a table are read by token id.

    Attributes:
        name: Parameter path through which the table was read.
        where: Path of the module whose forward read it ("" is the model itself).
        kind: "gather" or "product" (with a one-hot or count matrix).
        factor: Constant multiplying the rows until the end of the walk, or None (see `notes`).
        count: Executions of this place with equal facts.
        norm_after: Whether every use of the rows, after adds of other embeddings, is a normalisation.
        gradient: Whether a gradient reaches the table this way.
        rms: Root mean square of the rows at the end of the walk, measured in the pass, or None.
        reparametrized: The rows read are not the table's own (a mask, an update, a vector times it).
    """

    name: str
    where: str
    kind: Literal["gather", "product"]
    factor: float | None
    count: int = 1
    norm_after: bool = False
    gradient: bool = True
    rms: float | None = None
    reparametrized: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Readout:
    """One place where a product with the table yields logits.

    Attributes:
        factor: Constant multiplying the logits, hidden state, table and soft-cap slope included.
        soft_cap: c of c*tanh(z/c), or None.
        bias: Paths of the biases over the vocabulary that are added.
        hidden_rms: Root mean square where the backward walk ends, measured in the pass; 1.0 on meta
            behind a normalisation; else None.
        normalized: Whether a normalisation stands upstream, so that `hidden_rms` is free of the table.
        kappa: Mean cosine of the stream entering that normalisation with the looked-up row.
        logit_std: Std of the logits at the end of the walk, before a soft cap, measured, or None.
        delta: Paths of a low-rank product added to these logits alone (an adapter).
        reparametrized: The table read is not the table itself (a mask, an update, a vector times it).
        beside: Width of other tables that the same product sums over, side by side with this one.
    """

    name: str
    where: str
    factor: float | None
    count: int = 1
    soft_cap: float | None = None
    bias: tuple[str, ...] = ()
    hidden_rms: float | None = None
    normalized: bool = False
    kappa: float | None = None
    logit_std: float | None = None
    gradient: bool = True
    delta: tuple[str, ...] = ()
    reparametrized: str = ""
    beside: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Predicted:
    """What training would see first, by the formulas of `core.moments`.

    Attributes:
        log_vocab: ln V, the loss of uniform logits. Unit: nats.
        logit_std: Std of one logit. Unit: nats.
        lookup_rms: Root mean square of a looked-up row after its factor.
        own_logit: Mean logit of the token just read. Unit: nats.
        initial_loss: Expected first loss. Unit: nats.
        own_logit_range: Its bounds (kappa 0 to 1) where kappa is unknown.
        initial_loss_range: Likewise.
    """

    log_vocab: float
    logit_std: float | None = None
    lookup_rms: float | None = None
    own_logit: float | None = None
    initial_loss: float | None = None
    own_logit_range: tuple[float, float] | None = None
    initial_loss_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One vocabulary table.

    Attributes:
        names: Every parameter path that is this table, owner first.
        vocab, width: Its two axes, whichever comes first in memory.
        state: "tied" (one parameter in both roles), "aliased" (two parameters on one storage), "cut" (a role
            whose gradient does not reach it), "copy" (equal values in separate memory), "drifted" (close, or
            declared tied, but different), "untied", "unknown" (with the reason in `notes`).
        lookups, readouts: Where it is read, in order of first use.
        lookup_factor, readout_factor, soft_cap, hidden_rms: The value all records agree on, or None
            with the reason in `notes`; also None where the table has no such role.
        std: Root mean square of the entries now; None on meta.
        target_std: For unit-variance logits (or rows, where it is a lookup alone).
        lr_ratio: c of the learning-rate rule: the table is `c * U`.
        fresh: Whether its rows look like independent draws; None where that cannot be told.
        spread: Coefficient of variation of the non-zero row norms times sqrt(2*width).
        finite: Whether every entry is finite; None on meta.
        constant: Whether all entries are one number; None on meta.
        partner: Name of the table this one is a copy of, drifted from or untied from.
        distance: Relative Frobenius distance to the partner.
        padding_rows: Rows that are all zero.
    """

    names: tuple[str, ...]
    vocab: int
    width: int
    dtype: str
    state: State
    lookups: tuple[Lookup, ...] = ()
    readouts: tuple[Readout, ...] = ()
    lookup_factor: float | None = None
    readout_factor: float | None = None
    soft_cap: float | None = None
    readout_bias: bool = False
    norm_after_lookup: bool = False
    hidden_rms: float | None = None
    std: float | None = None
    target_std: float | None = None
    lr_ratio: float | None = None
    fresh: bool | None = None
    spread: float | None = None
    finite: bool | None = None
    constant: bool | None = None
    trainable: bool = True
    vocab_axis: int = 0
    partner: str | None = None
    distance: float | None = None
    padding_rows: tuple[int, ...] = ()
    predicted: Predicted = field(default_factory=lambda: Predicted(float("nan")))
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The owner's path."""
        return self.names[0]

    @property
    def tied(self) -> bool:
        """Whether one storage serves both roles and both gradients reach it."""
        return self.state in ("tied", "aliased")

    @property
    def terms(self) -> int:
        """How many products one logit sums, the width and that of tables side by side with this one."""
        return self.width + max((r.beside for r in self.readouts), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with `tied` spelt out."""
        return {**dataclasses.asdict(self), "tied": self.tied}
