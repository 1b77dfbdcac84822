"""One training of a small language model for an experiment: built by its scheme, trained, its series recorded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import tiebeam
import tiebeam.torch
from tiebeam.experiments.corpus import check_length
from tiebeam.experiments.data import Tokens
from tiebeam.experiments.spec import DivergedError, Work
from tiebeam.experiments.training import BeforeStep, Groups, TrainSettings, train
from tiebeam.zoo.torch.minigpt import MiniGPT, MiniGPTConfig


def build(work: Work, **changes: Any) -> MiniGPT:
    """The model that a run's config describes: "scheme", "width", "layers", "block" and "seed".

    Args:
        work: The run.
        changes: To the scheme's `MiniGPTConfig`.
    """
    config = work.config
    made = MiniGPTConfig.from_scheme(
        config["scheme"],
        vocab=text_of(work).vocab,
        width=config["width"],
        layers=config["layers"],
        block_size=config["block"],
    )
    model = MiniGPT(replace(made, **changes), generator=torch.Generator().manual_seed(config["seed"]))
    return model.to(work.device)


def text_of(work: Work) -> Tokens:
    """The tokens of a run that needs some."""
    if work.tokens is None:
        raise ValueError("this experiment needs text")
    return work.tokens


def training_of(config: Mapping[str, Any]) -> TrainSettings:
    """How a run's config trains."""
    return TrainSettings(
        steps=config["steps"],
        batch=config["batch"],
        rate=config["rate"],
        warmup=min(config["warmup"], config["steps"]),
        weight_decay=0.0,
        clip=config["clip"],
        seed=config["seed"],
        validate_every=max(config["steps"] // 8, 1),
        validation_windows=config["validation"],
    )


def matched_groups(model: MiniGPT, rate: float, *, ratio: float | None = None, **at: Any) -> Groups:
    """Groups in which each table has the rate, and the eps, that its scale asks for.

    Args:
        model: Its report says which parameters are tables.
        rate: Of the body.
        ratio: Of the table's rate to it; None is the report's own, which counts the norm's epsilon too.
        at: `base_width` and `base_readout_factor`, where `rate` was found at another width.
    """
    ids = torch.arange(min(8, model.config.vocab), device=next(model.parameters()).device)[None]
    report = tiebeam.inspect(model, ids)
    ratios = None if ratio is None else {table.name: ratio for table in report.tables}
    return tiebeam.torch.param_groups(model, report, lr=rate, ratios=ratios, **at)


def train_run(
    work: Work,
    model: MiniGPT,
    *,
    groups: Groups | None = None,
    ratio_steps: Sequence[int] = (),
    also: BeforeStep | None = None,
) -> dict[str, float]:
    """Train one model, record "loss" and "validation" (and "role ratio" at some steps), and return figures.

    Args:
        work: The run.
        model: Changed in place.
        groups: Of its parameters, with rates of their own.
        ratio_steps: At which the gradients of the two roles are measured.
        also: Done before each step.

    Returns:
        "first" and "last" validation loss, and "ratio at N" for each of `ratio_steps`. Unit: nats; 1.

    Raises:
        InputError: The text is shorter than a block.
        DivergedError: A loss is not finite.
    """
    tokens, settings, record = text_of(work), training_of(work.config), work.recorder
    for ids in (tokens.train, tokens.validation):
        check_length(ids, work.config["block"] + 1)
    figures: dict[str, float] = {}
    record.steps(settings.steps)

    def before(step: int, batch: Tensor, optimizer: torch.optim.Optimizer) -> None:
        if also is not None:
            also(step, batch, optimizer)
        if step in ratio_steps:
            found = tiebeam.measure(model, batch[:, :-1]).role_ratio
            if found is not None:
                figures[f"ratio at {step}"] = found
                record.point("role ratio", step, found)

    def on_step(done: int, loss: float) -> None:
        record.point("loss", done, loss)
        if not math.isfinite(loss):
            raise DivergedError({**figures, "last": math.nan})

    def validated(done: int, loss: float) -> None:
        record.point("validation", done, loss)
        figures["last" if done else "first"] = loss
        if not math.isfinite(loss):
            raise DivergedError({**figures, "last": math.nan})

    train(
        model,
        tokens.train,
        tokens.validation,
        settings,
        on_step,
        groups=groups,
        before_step=before,
        after_validation=validated,
        autocast=work.config["precision"] == "bf16",
        ranks=work.ranks,
    )
    return figures
