"""Training of the small model whose backward pass is written by hand, with Adam written out: NumPy alone."""

from collections.abc import Callable

import numpy as np

from tiebeam.errors import NotFiniteError
from tiebeam.experiments.chain import Chain
from tiebeam.zoo.numpy.tied import Path, TiedModel

OnStep = Callable[[int, TiedModel], object]


def train_by_hand(
    model: TiedModel,
    chain: Chain,
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    lookup: Path = "kept",
    on_step: OnStep | None = None,
) -> TiedModel:
    """Return the model after `steps` of Adam on samples of `chain`.

    Args:
        model: Where it starts; it is left as it is.
        chain: What it learns.
        steps: Updates.
        batch: Tokens in a step.
        rate: Of Adam, falling to 0 as a cosine; betas 0.9 and 0.999.
        seed: Of the samples.
        lookup: What becomes of the lookup's path to the table.
        on_step: Given the number of steps done and the model; with 0 before the first.

    Raises:
        NotFiniteError: The weights are no longer numbers, or give no loss that is one.

    Source: Kingma & Ba 2015, algorithm 1.

    Example:
        >>> chain = Chain.drawn("aligned", vocab=8, seed=0)
        >>> model = TiedModel.random(8, 4, tie=False)
        >>> trained = train_by_hand(model, chain, steps=50, batch=64, rate=0.05, seed=0)
        >>> every = np.arange(8)
        >>> chain.loss(trained.logits(every)) < chain.loss(model.logits(every))
        True
    """
    rng = np.random.default_rng(seed)
    first = {name: np.zeros_like(value) for name, value in model.parameters.items()}
    second = {name: np.zeros_like(value) for name, value in model.parameters.items()}
    tell, every = on_step or (lambda done, now: None), np.arange(chain.vocab)
    tell(0, model)
    for step in range(1, steps + 1):
        now = rate * 0.5 * (1.0 + np.cos(np.pi * (step - 1) / steps))
        moved = {}
        with np.errstate(over="ignore", invalid="ignore"):  # it is looked for below
            gradients = model.backward(*chain.sample(rng, batch), lookup=lookup).parameters
            for name, value in model.parameters.items():
                first[name] += 0.1 * (gradients[name] - first[name])
                second[name] += 0.001 * (gradients[name] ** 2 - second[name])
                scale = np.sqrt(second[name] / (1.0 - 0.999**step)) + 1e-8
                moved[name] = value - now * (first[name] / (1.0 - 0.9**step)) / scale
            model = model.with_parameters(**moved)
            if (step % 10 == 0 or step == steps) and not np.isfinite(model.logits(every)).all():
                raise NotFiniteError(f"the training has diverged at step {step}", got="logits that are no numbers")
        tell(step, model)
    return model
