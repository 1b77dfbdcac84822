"""What a MiniGPT is made of, whatever framework it is in: sizes, factors, stds, and the names of its weights.

Weights go from one framework to another as NumPy arrays under the names and shapes that they have in PyTorch:
`embed.weight`, `blocks.0.attention.qkv.weight`, ...; a tied readout has none of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.zoo.schemes import scheme

Positions = Literal["learned", "rotary", "none"]

Weights = dict[str, npt.NDArray[np.float32]]
"""Arrays by name; those of linear layers are (fan out, fan in)."""

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
"""Su et al. 2021, RoFormer, section 3.2.2."""

IGNORED_TARGET = -100

EMBEDDING_DEFAULT_STD = 1.0
"""What `nn.Embedding` draws with when nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class MiniGPTConfig:
    """Sizes and scales of a `MiniGPT`.

    Attributes:
        vocab: Rows of the table.
        width: Columns of the table, and of the stream.
        layers: Blocks; 0 feeds the lookup to the last norm.
        heads: Attention heads; divides `width`.
        block_size: Longest sequence. Unit: tokens.
        hidden: Width of the feed-forward layer; None is `4 * width`.
        dropout: Share dropped of attention weights, what a block adds and the lookup, in training alone.
        tie: Whether the lookup and the readout are one parameter.
        lookup_factor: Multiplies the looked-up rows, before positions are added.
        readout_factor: Multiplies the logits, before the soft cap.
        soft_cap: c of `c * tanh(z / c)` on the logits, or None.
        positions: "learned" (a table of their own, never tied), "rotary" or "none".
        bias: Whether linear layers have one. Norms always have gain and bias, the readout never.
        std: Of the weights of linear layers; None is `1 / sqrt(fan in)`. Those that write to the stream
            get `std / sqrt(2 * layers)`.
        table_std: Of the table; None keeps `nn.Embedding`'s default, 1.
        readout_std: Of the readout's own table where `tie` is False; None is the rule of `std`.
        position_std: Of the learned positions.

    Raises:
        RangeError: A size, share or scale lies outside what makes sense, or `heads` does not divide `width`.

    Example:
        >>> MiniGPTConfig(vocab=100, width=32, layers=2, heads=4, block_size=16).hidden_width
        128
    """

    vocab: int
    width: int
    layers: int
    heads: int
    block_size: int
    hidden: int | None = None
    dropout: float = 0.0
    tie: bool = True
    lookup_factor: float = 1.0
    readout_factor: float = 1.0
    soft_cap: float | None = None
    positions: Positions = "learned"
    bias: bool = False
    std: float | None = None
    table_std: float | None = None
    readout_std: float | None = None
    position_std: float = 0.02

    def __post_init__(self) -> None:
        for name, least in (("vocab", 1), ("width", 1), ("layers", 0), ("heads", 1), ("block_size", 1)):
            _at_least(name, getattr(self, name), least)
        _at_least("hidden", self.hidden_width, 1)
        for name in ("soft_cap", "std", "table_std", "readout_std", "position_std"):
            _positive(name, getattr(self, name))
        for name in ("lookup_factor", "readout_factor"):
            if not math.isfinite(getattr(self, name)):
                raise RangeError(f"{name} of MiniGPTConfig is no number", got=repr(getattr(self, name)))
        if not 0.0 <= self.dropout < 1.0:
            raise RangeError("dropout of MiniGPTConfig", got=repr(self.dropout), expected="0 <= dropout < 1")
        self._check_heads_and_positions()

    def _check_heads_and_positions(self) -> None:
        if self.width % self.heads:
            raise RangeError(
                "heads of MiniGPTConfig does not divide width",
                got=f"heads={self.heads}, width={self.width}",
                expected="width a multiple of heads",
            )
        if self.positions not in get_args(Positions):
            raise RangeError(
                "positions of MiniGPTConfig",
                got=repr(self.positions),
                expected=f"one of {get_args(Positions)}",
            )
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise RangeError(
                "rotary positions turn pairs of channels",
                got=f"{self.width // self.heads} channels in each head",
                expected="an even number",
                hint='choose another number of heads, or positions="learned"',
            )

    @property
    def hidden_width(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.width if self.hidden is None else self.hidden

    def linear_std(self, fan_in: int, *, writes: bool = False) -> float:
        """Std of the weights of a linear layer.

        Args:
            fan_in: How many inputs it sums over.
            writes: Whether what it returns is added to the stream.

        Example:
            >>> MiniGPTConfig(vocab=9, width=16, layers=2, heads=2, block_size=8).linear_std(16, writes=True)
            0.125
        """
        std = fan_in**-0.5 if self.std is None else self.std
        return float(std / math.sqrt(2 * max(self.layers, 1))) if writes else float(std)

    @property
    def lookup_std(self) -> float:
        """Std of the table that is looked up."""
        return EMBEDDING_DEFAULT_STD if self.table_std is None else self.table_std

    @property
    def own_readout_std(self) -> float:
        """Std of the readout's own table, where `tie` is False."""
        return self.linear_std(self.width) if self.readout_std is None else self.readout_std

    @classmethod
    def from_scheme(
        cls,
        name: str,
        *,
        vocab: int,
        width: int,
        layers: int = 4,
        heads: int | None = None,
        block_size: int = 128,
        positions: Positions = "none",
    ) -> "MiniGPTConfig":
        """Return the config that scales its table by `tiebeam.zoo.schemes.SCHEMES[name]`.

        Args:
            name: "A" to "F" or "D'".
            vocab: Rows of the table.
            width: Columns of the table.
            layers: Blocks.
            heads: None is one for every 64 channels, at least 2.
            block_size: Longest sequence. Unit: tokens.
            positions: "none" leaves the table alone to feed the stream.

        Raises:
            RangeError: No scheme has that name.

        Example:
            >>> MiniGPTConfig.from_scheme("D", vocab=100, width=64).readout_factor
            0.125
        """
        chosen = scheme(name)
        return cls(
            vocab=vocab,
            width=width,
            layers=layers,
            heads=max(width // 64, 2) if heads is None else heads,
            block_size=block_size,
            positions=positions,
            tie=chosen.tie,
            lookup_factor=chosen.lookup_factor(width),
            readout_factor=chosen.readout_factor(width),
            table_std=chosen.table_std(width),
            readout_std=None if chosen.readout_std is None else chosen.readout_std(width),
        )


def check_weights(given: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raise where the shapes of some weights are not those of a model.

    Args:
        given: By name.
        wanted: Likewise.

    Raises:
        InputError: One is missing, or the model has none of that name.
        ShapeError: One does not fit.
    """
    missing, more = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing or more:
        raise InputError(
            "the weights are of another MiniGPT",
            got="; ".join(
                f"{what}: {', '.join(names)}" for what, names in (("missing", missing), ("unknown", more)) if names
            ),
            hint="the config must be that of the model that they come from; a tied table goes once, as embed.weight: "
            "named_parameters() of a PyTorch model gives it so, state_dict() under a second name too",
        )
    for name, shape in wanted.items():
        if given[name] != shape:
            raise ShapeError(f"weight '{name}' does not fit the MiniGPT", got=str(given[name]), expected=str(shape))


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RangeError(f"{name} of MiniGPTConfig", got=repr(value), expected=f"a whole number of at least {least}")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise RangeError(f"{name} of MiniGPTConfig", got=repr(value), expected="a positive number, or None")
