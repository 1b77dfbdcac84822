"""What a model says before it has learned anything: measured with numbers alone, and as `tiebeam.inspect` has it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

import tiebeam
from tiebeam.experiments.lm import build, text_of
from tiebeam.experiments.spec import Work
from tiebeam.experiments.windows import spread_windows
from tiebeam.zoo.torch.minigpt import MiniGPT

_ROWS = 256  # positions whose logits are held at once

INSPECTED = 2
"""Windows that `tiebeam.inspect` measures its cosine on."""


@torch.no_grad()
def look(work: Work) -> dict[str, float]:
    """Measure the model of one config on windows of held-out text.

    Returns:
        "loss", "own" and "std" of the logits, and "formula loss", "formula own" and "formula std" of the report.

    Raises:
        InputError: The text is shorter than a block.
    """
    tokens, block = text_of(work), work.config["block"]
    windows = spread_windows(tokens.validation, block + 1, work.config["windows"]).to(work.device)
    model = build(work)
    found = logit_figures(model, windows[:, :-1], windows[:, 1:])
    report = tiebeam.inspect(model, windows[:INSPECTED, :-1])
    said = next(table for table in report.tables if table.readouts).predicted
    formula = {"formula loss": said.initial_loss, "formula own": said.own_logit, "formula std": said.logit_std}
    work.recorder.point("loss", 0, found["loss"])
    return {**found, **{name: math.nan if value is None else value for name, value in formula.items()}}


def logit_figures(model: MiniGPT, ids: Tensor, targets: Tensor) -> dict[str, float]:
    """Mean loss, mean logit of the token just read, and std of all logits; a few positions at a time."""
    hidden = torch.cat([model.stream(part).flatten(0, 1) for part in ids.split(4)])
    read, right = ids.flatten(), targets.flatten()
    total = squares = own = loss = 0.0
    for rows in torch.arange(len(hidden), device=hidden.device).split(_ROWS):
        logits = model.readout(hidden[rows]).double()
        total += float(logits.sum())
        squares += float(logits.square().sum())
        own += float(logits.gather(1, read[rows, None]).sum())
        loss += float(F.cross_entropy(logits, right[rows], reduction="sum"))
    positions = len(hidden)
    count = positions * model.config.vocab
    variance = (squares - total**2 / count) / (count - 1)
    return {"loss": loss / positions, "own": own / positions, "std": math.sqrt(max(variance, 0.0))}
