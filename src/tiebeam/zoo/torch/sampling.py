"""From logits to the next token: greedy, or a draw after temperature, top-k and top-p."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tiebeam.errors import RangeError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: Divides the logits, > 0.
        top_k: Only the k largest logits take part; None is all.
        top_p: Of those, the fewest of largest probability that sum to at least p; None is all.
        greedy: The largest logit, the first of equals; nothing is drawn.

    Raises:
        RangeError: A number lies outside its range.

    Example:
        >>> Sampling(greedy=True).pick(torch.tensor([[0.0, 3.0, 1.0]]))
        tensor([1])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < float("inf"):
            raise RangeError(
                "temperature",
                got=repr(self.temperature),
                expected="a positive number",
                hint="greedy=True draws nothing",
            )
        if self.top_k is not None and self.top_k < 1:
            raise RangeError("top_k", got=repr(self.top_k), expected="at least 1, or None")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise RangeError("top_p", got=repr(self.top_p), expected="0 < top_p <= 1, or None")

    def pick(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Choose one token for each row.

        Args:
            logits: (batch, vocab), float. Unit: nats.
            generator: Where draws come from, on the device of `logits`; None is torch's own.

        Returns:
            (batch,), int64.
        """
        if self.greedy:
            return logits.argmax(dim=-1)
        drawn = torch.multinomial(self.probabilities(logits), 1, generator=generator)
        return drawn.squeeze(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return what `pick` draws from: (batch, vocab), float32, rows that sum to 1.

        Example:
            >>> Sampling(top_k=1).probabilities(torch.tensor([[0.0, 3.0, 1.0]]))
            tensor([[0., 1., 0.]])
        """
        if self.greedy:
            return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
        ordered, tokens = (logits.float() / self.temperature).sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            ordered[..., self.top_k :] = -torch.inf
        chances = ordered.softmax(dim=-1)
        if self.top_p is not None:
            before = chances.cumsum(dim=-1) - chances
            chances = chances.masked_fill(before >= self.top_p, 0.0)
            chances = chances / chances.sum(dim=-1, keepdim=True)
        return torch.zeros_like(chances).scatter(-1, tokens, chances)
