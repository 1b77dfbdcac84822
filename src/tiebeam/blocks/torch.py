"""One parameter read in both roles, as a PyTorch module."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.blocks.readout_loss.torch.call import readout_loss
from tiebeam.blocks.settings import Settings, wrong_ids

ID_DTYPES = (torch.int64, torch.int32)


class TiedEmbedding(nn.Module):
    """A table that is looked up and read out: `block(ids)` and `block.readout(hidden)`.

    ids (...) -> rows * lookup_factor [-> project_in] -> (..., width), and
    hidden (..., width) [-> project_out] -> product with the table * readout_factor [+ bias] [-> soft cap]
    -> logits (..., vocab).

    The table is one parameter, `weight`: nothing is tied afterwards, so nothing can come untied, and a state
    dict holds it once. Both roles go through `forward`, so that hooks and wrappers that fetch parameters for
    it (sharding, offloading) serve both.

    Args:
        vocab: Rows of the table.
        width: Of the stream.
        table_width: Columns of the table; None is `width`. Where it differs, `project_in` and `project_out`
            are linear layers without bias (as in ALBERT and OPT), drawn with `1/sqrt(fan in)`.
        lookup_factor: Multiplies the looked-up rows; None is `sqrt(table_width)`.
        readout_factor: Multiplies the product, before bias and soft cap. Applied to the hidden state, which
            is smaller than the logits.
        soft_cap: c of `c * tanh(z / c)` on the logits, or None.
        padding_idx: Its lookup is zero whatever its row holds, and sends no gradient; the row starts at zero.
            As a readout it is a row like any other, which training turns away from.
        bias: Whether logits have one. It starts at zero.
        device, dtype: Of the parameters, as anywhere in torch; default torch's own.
        generator: Where the first draw comes from; None is torch's own.

    Attributes:
        weight: The table, (vocab, table_width).
        bias: (vocab,), or None.
        settings: Sizes and factors with their defaults filled in, and the `std` that follows.

    Raises:
        RangeError: A number lies outside what makes sense.

    Source: Press & Wolf 2017 (the tie), arXiv 1608.05859; Vaswani et al. 2017, section 3.4 (the factor); Lan
        et al. 2020 (ALBERT), arXiv 1909.11942, section 3.1 (the factorised table).

    Example:
        >>> block = TiedEmbedding(vocab=100, width=64)
        >>> x = block(torch.tensor([[10, 25, 31]]))
        >>> x.shape, block.readout(x).shape
        (torch.Size([1, 3, 64]), torch.Size([1, 3, 100]))
        >>> [name for name, _ in block.named_parameters()]
        ['weight']
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        vocab: int,
        width: int,
        *,
        table_width: int | None = None,
        lookup_factor: float | None = None,
        readout_factor: float = 1.0,
        soft_cap: float | None = None,
        padding_idx: int | None = None,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.settings = Settings.of(
            vocab,
            width,
            table_width=table_width,
            lookup_factor=lookup_factor,
            readout_factor=readout_factor,
            soft_cap=soft_cap,
            padding_idx=padding_idx,
        )
        rows, inner = self.settings.vocab, self.settings.table_width
        self.weight = nn.Parameter(torch.empty(rows, inner, device=device, dtype=dtype))
        self.register_parameter("bias", nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None)
        self.project_in: nn.Linear | None = None
        self.project_out: nn.Linear | None = None
        if self.settings.factorised:
            self.project_in = nn.Linear(inner, self.settings.width, bias=False, device=device, dtype=dtype)
            self.project_out = nn.Linear(self.settings.width, inner, bias=False, device=device, dtype=dtype)
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the table by the rule of `settings.std`, then the projections; no padding row, no bias.

        Args:
            generator: Where draws come from; None is torch's own.
        """
        self.weight.normal_(0.0, self.settings.std, generator=generator)
        if self.settings.padding_idx is not None:
            self.weight[self.settings.padding_idx].zero_()
        for projection in (self.project_in, self.project_out):
            if projection is not None:
                projection.weight.normal_(0.0, 1.0 / math.sqrt(projection.in_features), generator=generator)
        if self.bias is not None:
            self.bias.zero_()

    def forward(
        self, inputs: Tensor, *, reverse: bool = False, targets: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Look `inputs` up, read them out with `reverse=True`, or with `targets` return the loss of that readout.

        Args:
            inputs: Token ids, int64 or int32, of any shape; to be read out, a hidden state, (..., width).
            reverse: Which of the two.
            targets: See `loss`, as are the `options`.

        Returns:
            (..., width), of the table's dtype; or logits, (..., vocab); or a loss. Unit of both: nats.

        Raises:
            InputError: The ids are no integers.
            ShapeError: The hidden state does not end in `width`.
            IndexError: On a CPU, an id lies outside the table (an accelerator reports it in its own way).
        """
        if targets is not None:
            return self._loss(inputs, targets, **options)  # type: ignore[no-any-return]
        return self._read(inputs) if reverse else self._look(inputs)

    def readout(self, hidden: Tensor) -> Tensor:
        """Return the logits, (..., vocab), of a hidden state, (..., width): `self(hidden, reverse=True)`."""
        return self(hidden, reverse=True)  # type: ignore[no-any-return]

    def loss(self, hidden: Tensor, targets: Tensor, **options: Any) -> Any:
        """Return the cross entropy of `readout(hidden)` against `targets`, without holding the logits.

        Args:
            hidden: (..., width).
            targets: (...), ids of the tokens that are to be predicted, or -100.
            options: Of `tiebeam.torch.readout_loss`, but for what the block knows itself: `ignore_index`,
                `label_smoothing`, `z_loss`, `weight`, `reduction`, `ids`, `returns`, `chunk`.

        Returns:
            What `readout_loss` does: a scalar, the mean. Unit: nats.

        Raises:
            ShapeError: The hidden state does not end in `width`, or the targets do not fit it.
            InputError, RangeError: As `readout_loss`.

        Example:
            >>> block = TiedEmbedding(vocab=100, width=64)
            >>> ids = torch.tensor([[10, 25, 31]])
            >>> block.loss(block(ids[:, :-1]), ids[:, 1:]).shape
            torch.Size([])
        """
        return self(hidden, targets=targets, **options)

    def _look(self, ids: Tensor) -> Tensor:
        if ids.dtype not in ID_DTYPES:
            raise wrong_ids(ids.dtype)
        x = F.embedding(ids, self.weight)
        if self.settings.padding_idx is not None:
            x = x.masked_fill((ids == self.settings.padding_idx).unsqueeze(-1), 0.0)
        x = _times(x, self.settings.lookup_factor)
        return x if self.project_in is None else self.project_in(x)

    def _read(self, hidden: Tensor) -> Tensor:
        self.settings.check_hidden(tuple(hidden.shape))
        if self.project_out is not None:
            hidden = self.project_out(hidden)
        logits = F.linear(_times(hidden, self.settings.readout_factor), self.weight, self.bias)
        cap = self.settings.soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _loss(self, hidden: Tensor, targets: Tensor, **options: Any) -> Any:
        self.settings.check_hidden(tuple(hidden.shape))
        if self.project_out is not None:
            hidden = self.project_out(hidden)
        return readout_loss(
            hidden,
            self.weight,
            targets,
            factor=self.settings.readout_factor,
            soft_cap=self.settings.soft_cap,
            bias=self.bias,
            **options,
        )

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return self.settings.describe() + (", bias=True" if self.bias is not None else "")


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor
