"""What the demo tells while it runs and what it gives in the end: plain frozen data, no framework."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from tiebeam.core.report import Report
from tiebeam.experiments.curve import Curve

Stage = Literal["corpus", "tokenizer", "encode", "inspect", "train-mistake", "initialize", "train-mended", "sample"]

STAGES: tuple[tuple[Stage, str], ...] = (
    ("corpus", "reading Python's standard library"),
    ("tokenizer", "training a byte-level BPE on it"),
    ("encode", "cutting it into tokens"),
    ("inspect", "inspecting the model with the classic mistake"),
    ("initialize", "mending the same model, and inspecting it again"),
    ("train-mistake", "training the model with the mistake"),
    ("train-mended", "training the mended model on the same batches"),
    ("sample", "letting both write"),
)
"""Every stage in its order, with what it does; the two trainings run side by side."""


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """One sign of progress: every stage begins with `done` 0 and ends with `done == total`.

    Attributes:
        stage: One of `STAGES`.
        done: Units of work done.
        total: Units of work in the stage.
        loss: Of the last training step, in the two training stages. Unit: nats.
        detail: What came out, at the end of a stage, in a few words.
    """

    stage: Stage
    done: int
    total: int
    loss: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class DemoRun:
    """One of the two models.

    Attributes:
        report: What `tiebeam.inspect` said before training.
        curve: How training went.
        sample: What the trained model wrote after the prompt.
    """

    report: Report
    curve: Curve
    sample: str


@dataclass(frozen=True)
class DemoResult:
    """Two trainings that differ in the std of one table.

    Attributes:
        mistake: The model as it was built.
        mended: The same model after `tiebeam.initialize`.
        initialized: What `tiebeam.initialize` reported.
        vocab: Tokens of the BPE.
        config: Every field of the model's config.
        settings: Every field of the training's settings.
        prompt: What both models continued.
        corpus: "root", "files", "bytes", "train_tokens", "validation_tokens".
        stage_seconds: Time of each stage; the two trainings run side by side.
        seconds: Time of all of it.
    """

    mistake: DemoRun
    mended: DemoRun
    initialized: Report
    vocab: int
    config: dict[str, Any]
    settings: dict[str, Any]
    prompt: str
    corpus: dict[str, Any]
    stage_seconds: dict[str, float]
    seconds: float

    @property
    def log_vocab(self) -> float:
        """The loss of a model that knows nothing and claims nothing, ln V. Unit: nats."""
        return math.log(self.vocab)

    @property
    def caught_up_at(self) -> int | None:
        """Steps after which the mended model was where the other one ended; None if never."""
        return self.mended.curve.first_below(self.mistake.curve.final_loss)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON, reports included."""
        return {
            **{name: getattr(self, name) for name in ("vocab", "log_vocab", "prompt", "caught_up_at", "seconds")},
            **{name: dict(getattr(self, name)) for name in ("config", "settings", "corpus", "stage_seconds")},
            "initialized": self.initialized.to_dict(),
            **{name: _run_dict(run) for name, run in (("mistake", self.mistake), ("mended", self.mended))},
        }


def _run_dict(run: DemoRun) -> dict[str, Any]:
    return {"report": run.report.to_dict(), "curve": dataclasses.asdict(run.curve), "sample": run.sample}
