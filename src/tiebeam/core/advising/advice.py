"""Whether to tie: what it saves, what it does not, and how sure that is. Arithmetic on counts, and one rule.

With one table of `V * d` elements and a body of `B`: tied `B + V*d`, untied `B + 2*V*d`, saved `V*d`, which is a share
`V*d / (B + 2*V*d)` of the untied model. It falls as a model grows, for `B` grows with depth and with the square of the
width, and the table with the width alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tiebeam.core.advising.evidence import EVIDENCE, PRACTICE, THIN, Evidence, Practice
from tiebeam.errors import RangeError

Now = Literal["tied", "untied", "no-readout", "unknown"]
How = Literal["built", "seen", "file", "formula", "given"]
Verdict = Literal["tie", "either", "untie", "nothing to tie", "cannot tie"]

SCHEMA_VERSION = 1

WORTH, LITTLE = 0.10, 0.05
"""Shares of the untied model from which one table is worth a constraint, and below which it is not.

At 100 million parameters it is a quarter, at 8 billion under a tenth, where practice begins to part; `PRACTICE` counts.
"""
SMALL = 1_000_000_000
"""Parameters up to which there are comparisons to speak of."""

MOST_ELEMENTS = 10**18
"""Of a model: a number beyond is no model's."""

BITS: Mapping[str, int] = {"float32": 32, "float16": 16, "bfloat16": 16, "float8": 8, "int8": 8, "int4": 4}
"""Of one element; without the scales that come with the last three."""

STATES: Mapping[str, int] = {"sgd": 0, "momentum": 1, "lion": 1, "rmsprop": 1, "adagrad": 1, "adam": 2, "adamw": 2}
"""Numbers that an optimizer keeps for each parameter."""
STATE_BITS = 32  # float32, as optimizers keep them

GROWTH = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Factors on width and depth together that the curve is drawn at."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted of a model.

    Attributes:
        vocab, width: Of the table that is read out, or of the one that is looked up where none is.
        body: Parameters beside the two tables; None where they are not known.
        now: What the model does at present.
        how: "built" (without memory, as the library builds it), "seen" (a live model, by one pass), "file" (headers),
            "formula", "given".
        formula: Which one, where it is one.
        other: Elements of the lookup's table where it is of another shape than the readout's, which rules a tie out.
        sparse: Whether only some of the body works on a token (experts).
        layers: For the curve's labels.
    """

    vocab: int
    width: int
    body: int | None
    now: Now = "unknown"
    how: How = "given"
    formula: str = ""
    other: int = 0
    sparse: bool = False
    layers: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, least in (("vocab", self.vocab, 1), ("width", self.width, 1), ("body", self.body, 0)):
            if value is not None and not least <= value <= MOST_ELEMENTS:
                raise RangeError(f"{name} of a model", got=f"{value:,}", expected=f"{least} to {MOST_ELEMENTS:,}")

    @property
    def table(self) -> int:
        """Elements of one table."""
        return self.vocab * self.width


@dataclass(frozen=True, slots=True)
class Setting:
    """What the costs are counted for.

    Attributes:
        batch, length: Sequences, and tokens of each.
        dtype: Of weights, gradients and logits.
        optimizer: One of `STATES`.
    """

    batch: int = 8
    length: int = 1024
    dtype: str = "float32"
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("length", self.length)):
            if not 1 <= value <= MOST_ELEMENTS:
                raise RangeError(f"{name} to count for", got=f"{value:,}", expected="at least 1")
        for name, given, known in (("dtype", self.dtype, BITS), ("optimizer", self.optimizer, STATES)):
            if given not in known:
                raise RangeError(f"{name} to count for", got=repr(given), expected=", ".join(known))


@dataclass(frozen=True, slots=True)
class Sizes:
    """One cost, either way. Unit: the field's. None where the body is not known."""

    tied: int | None
    untied: int | None
    saved: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What training holds. Unit: bytes.

    Attributes:
        weights, gradients, optimizer: By parameter count.
        logits: One copy of a batch's logits, the same tied or untied.
        logits_training: With their gradient, and the float32 copy that a loss takes of shorter ones.
    """

    weights: Sizes
    gradients: Sizes
    optimizer: Sizes
    logits: int
    logits_training: int


@dataclass(frozen=True, slots=True)
class Flops:
    """Arithmetic for one token: a multiplication and an addition are two. Tying changes none of it.

    Attributes:
        lookup: Of the lookup: rows are copied.
        readout: Of the product with the table, forwards.
        readout_training: Forwards and backwards.
        model: Of every matrix, forwards, attention over the context left out; None where the body is not known or
            works in parts.
        readout_share: `readout` over `model`.
    """

    lookup: int
    readout: int
    readout_training: int
    model: int | None
    readout_share: float | None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The saving at another size: width and depth times `growth`, the vocabulary as it is."""

    growth: float
    width: int
    layers: int | None
    body: int
    tied: int
    untied: int
    saved: int
    share: float


@dataclass(frozen=True)
class Advice:
    """What `tiebeam.advise` says.

    Attributes:
        model: What was looked at.
        tied, untied, saved: Parameters. The first two are None where the body is not known.
        share: `saved / untied`: what tying takes off the untied model.
        tables: Share of the tables in the tied and in the untied model.
        counted: What they were counted from, and how.
        bytes: By dtype.
        verdict: Whether to tie.
        sure: How sure that is, apart from the arithmetic.
        curve: The saving over scale.
    """

    model: str
    counted: Counted
    setting: Setting
    tied: int | None
    untied: int | None
    saved: int
    share: float | None
    tables: Mapping[str, float | None]
    bytes: Mapping[str, Sizes]
    memory: Memory
    flops: Flops
    verdict: Verdict
    reason: str
    sure: str
    evidence: tuple[Evidence, ...]
    practice: tuple[Practice, ...]
    curve: tuple[CurvePoint, ...]
    notes: tuple[str, ...] = ()

    renderers: ClassVar[dict[str, Callable[[Advice], str]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--format json` prints."""
        plain = dataclasses.asdict(self)
        counted = plain.pop("counted")
        notes = [*counted.pop("notes"), *plain.pop("notes")]
        return {"schema": SCHEMA_VERSION, **plain, **counted, "notes": notes}

    def to_markdown(self) -> str:
        return self.renderers["markdown"](self)

    def to_html(self) -> str:
        return self.renderers["html"](self)

    def to_json(self) -> str:
        return self.renderers["json"](self)

    def __str__(self) -> str:
        return self.renderers["text"](self) if "text" in self.renderers else repr(self)


def advise(model: str, counted: Counted, setting: Setting | None = None, notes: tuple[str, ...] = ()) -> Advice:
    """Weigh up a tie.

    Args:
        model: What to call it.
        counted: Its sizes.
        setting: What costs are counted for.
        notes: More to be said.

    Source: Press & Wolf 2017, arXiv 1608.05859; golden rows `advice-*`.

    Example:
        >>> found = advise("GPT-2 small", Counted(50257, 768, 85842432))
        >>> found.tied, found.untied, found.saved, round(found.share, 3), found.verdict
        (124439808, 163037184, 38597376, 0.237, 'tie')
    """
    setting = setting or Setting()
    table, body = counted.table, counted.body
    lone, apart = counted.now == "no-readout", bool(counted.other)
    second = 0 if lone else counted.other or table
    untied = None if body is None else body + table + second
    tied = untied if lone else None if body is None or apart else body + table
    saved = 0 if lone or apart else table
    share = saved / untied if untied else None
    verdict, reason, sure = judge(counted, share, untied)
    return Advice(
        model=model,
        counted=counted,
        setting=setting,
        tied=tied,
        untied=untied,
        saved=saved,
        share=share,
        tables={
            "tied": table / tied if tied else None,
            "untied": (table + second) / untied if untied else None,
        },
        bytes={name: _sizes(tied, untied, saved, size) for name, size in BITS.items()},
        memory=_memory(tied, untied, saved, counted.vocab, setting),
        flops=_flops(counted),
        verdict=verdict,
        reason=reason,
        sure=sure,
        evidence=EVIDENCE if saved else (),
        practice=PRACTICE if saved else (),
        curve=_curve(counted) if saved else (),
        notes=notes,
    )


def body_by_rule(layers: int, width: int) -> int:
    """Parameters of a transformer's blocks: attention of `4 * width**2`, a feed-forward part of `8 * width**2`.

    Args:
        layers: Blocks, at least 0.
        width: Unit: features.

    Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1. Norms, biases and positions are left out.

    Example:
        >>> body_by_rule(12, 768)
        84934656
    """
    return 12 * layers * width**2


def judge(counted: Counted, share: float | None, untied: int | None) -> tuple[Verdict, str, str]:
    """Whether to tie, why, and how sure that is."""
    if counted.now == "no-readout":
        return "nothing to tie", "the model reads nothing out over the vocabulary", "certain"
    if counted.other:
        return (
            "cannot tie",
            "lookup and readout are of different shapes: one table cannot serve both as they are",
            "certain",
        )
    if share is None or untied is None:
        said = f"one table holds {counted.table:,} parameters; what share of the model that is, is not known"
        return "either", said, "not at all: the rest of the model was not counted"
    size = f"one table is {share:.1%} of the untied model"
    if share >= WORTH:
        sure = (
            "fair: compared at such sizes, and quality did not suffer where input and output mean the same by a token"
            if untied <= SMALL
            else f"the saving is certain; that quality does not pay for it is not: {THIN}"
        )
        return "tie", f"{size}: worth a constraint, unless input and output tokens mean different things", sure
    thin = f"the saving is certain; what it does to quality is not: {THIN}"
    if share >= LITTLE:
        return "either", f"{size}: some memory saved for some freedom lost, and public models do both", thin
    return "untie", f"{size}: too little to constrain both ends for, where memory allows two tables", thin


def _bytes(elements: int, bits: int) -> int:
    return -(-elements * bits // 8)


def _sizes(tied: int | None, untied: int | None, saved: int, bits: int) -> Sizes:
    held = [None if n is None else _bytes(n, bits) for n in (tied, untied)]
    return Sizes(held[0], held[1], _bytes(saved, bits))


def _memory(tied: int | None, untied: int | None, saved: int, vocab: int, setting: Setting) -> Memory:
    bits = BITS[setting.dtype]
    weights = _sizes(tied, untied, saved, bits)
    elements = setting.batch * setting.length * vocab
    logits = _bytes(elements, bits)
    return Memory(
        weights=weights,
        gradients=weights,
        optimizer=_sizes(tied, untied, saved, STATE_BITS * STATES[setting.optimizer]),
        logits=logits,
        logits_training=2 * logits + (0 if bits >= STATE_BITS else _bytes(elements, STATE_BITS)),
    )


def _flops(counted: Counted) -> Flops:
    readout = 0 if counted.now == "no-readout" else 2 * counted.table
    known = counted.body is not None and not counted.sparse
    model = 2 * (counted.body or 0) + readout if known else None
    return Flops(0, readout, 3 * readout, model, readout / model if model else None)


def _curve(counted: Counted) -> tuple[CurvePoint, ...]:
    """Width and depth grow together, as they mostly do: the body with the cube, the table with the width."""
    if not counted.body:
        return ()
    points = []
    for growth in GROWTH:
        width, body = max(1, round(counted.width * growth)), round(counted.body * growth**3)
        table = counted.vocab * width
        points.append(
            CurvePoint(
                growth=growth,
                width=width,
                layers=None if counted.layers is None else max(1, round(counted.layers * growth)),
                body=body,
                tied=body + table,
                untied=body + 2 * table,
                saved=table,
                share=table / (body + 2 * table),
            )
        )
    return tuple(points)
