"""A task whose best loss is known: each token is followed by others with probabilities that are written down.

Every token has a place in a small space. Where the task is *aligned*, what follows a token lies near its place turned
by one rotation: one space serves what a token says and what says it. Where it is *misaligned*, what follows depends
on places of another space, drawn independently: what a token says has nothing to do with what says it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Kind = Literal["aligned", "misaligned"]


@dataclass(frozen=True, eq=False)
class Chain:
    """A Markov chain over tokens.

    Attributes:
        follows: (vocab, vocab), float64: the probability of each token after each; no token follows itself.

    Example:
        >>> chain = Chain.drawn("aligned", vocab=16, seed=0)
        >>> bool(np.allclose(chain.follows.sum(axis=1), 1.0)), float(np.trace(chain.follows))
        (True, 0.0)
    """

    follows: Floats

    @classmethod
    def drawn(cls, kind: Kind, *, vocab: int, seed: int, places: int = 8, sharpness: float = 1.5) -> "Chain":
        """Draw one.

        Args:
            kind: Whether one space serves both.
            vocab: Number of tokens.
            seed: Of NumPy's default generator.
            places: Dimensions of the space.
            sharpness: Factor on the affinities, which have a std of about 1; larger is more certain.
        """
        rng = np.random.default_rng(seed)
        said = rng.normal(size=(vocab, places)) / places**0.25
        saying = said if kind == "aligned" else rng.normal(size=(vocab, places)) / places**0.25
        turned, _ = np.linalg.qr(rng.normal(size=(places, places)))
        affinity = sharpness * (said @ turned) @ saying.T
        np.fill_diagonal(affinity, -np.inf)
        weights = np.exp(affinity - affinity.max(axis=1, keepdims=True))
        return cls(weights / weights.sum(axis=1, keepdims=True))

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return len(self.follows)

    @property
    def entropy(self) -> float:
        """The least loss that any model can have, tokens being equally frequent. Unit: nats."""
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(self.follows > 0, self.follows * np.log(self.follows), 0.0)
        return float(-terms.sum(axis=1).mean())

    def sample(self, rng: np.random.Generator, count: int) -> tuple[Ids, Ids]:
        """Draw `count` tokens, all equally likely, and what follows each."""
        ids = rng.integers(0, self.vocab, size=count)
        sums = self.follows.cumsum(axis=1)
        chosen = (sums[ids] < rng.random(count)[:, None] * sums[ids, -1:]).sum(axis=1)
        return ids, chosen.astype(np.int64)

    def loss(self, logits: Floats) -> float:
        """The expected loss of a model that answers token t with `logits[t]`, (vocab, vocab). Unit: nats."""
        top = logits.max(axis=1, keepdims=True)
        log_q = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
        return float(-(self.follows * log_q).sum(axis=1).mean())
