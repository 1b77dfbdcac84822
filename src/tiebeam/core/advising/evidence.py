"""What is known of tying's effect on quality, and from how large a model: rows to be cited.

The saving is arithmetic. Whether quality pays for it is not: what was measured, was measured on small models.
"""

from dataclasses import dataclass
from typing import Literal

Speaks = Literal["for", "against", "both ways"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One finding from outside.

    Attributes:
        claim: What was found.
        speaks: For tying, against it, or both ways.
        scale: On what it was found.
        source: Who says so.
    """

    claim: str
    speaks: Speaks
    scale: str
    source: str


EVIDENCE = (
    Evidence(
        "tying lowers perplexity and regularises",
        "for",
        "word-level models in which the tables were most of the parameters",
        "Press & Wolf 2017, arXiv 1608.05859",
    ),
    Evidence(
        "tying follows from a loss whose target is smoothed towards similar words",
        "for",
        "theory, and small word-level models",
        "Inan et al. 2017, arXiv 1611.01462",
    ),
    Evidence(
        "tied with its rows times sqrt(width): validation loss 5.77 against 5.92 untied at width 128, 5.71 against "
        "5.73 at 512, where the noise is below 0.05 nats",
        "for",
        "4 layers, WikiText-2, 800 steps, 2 seeds",
        "AnyInit, Tied embeddings",
    ),
    Evidence(
        "where input and output space agree, the same loss at 32% fewer parameters (ratio 1.00, seeds 0.96 to 1.11); "
        "where they were made to differ, 1.51 times the excess loss (1.37 to 1.64)",
        "both ways",
        "a toy with 64 tokens, 5 seeds",
        "Deep learning from zero, day 67",
    ),
    Evidence(
        "a small factorised input table beside a full output one is better for its parameters than a tied one",
        "against",
        "encoders",
        "Chung et al. 2021, arXiv 2010.12821",
    ),
    Evidence(
        "a tied table is pulled towards the output space",
        "against",
        "training from scratch",
        "Lopardo et al. 2026",
    ),
    Evidence(
        "log-probabilities have rank width + 1 at most, tied or not; tying takes away one way around it",
        "against",
        "theory",
        "Yang et al. 2018, arXiv 1711.03953",
    ),
)
"""In the order in which they are shown."""

THIN = "controlled comparisons at billions of parameters are all but absent from public reports"


@dataclass(frozen=True, slots=True)
class Practice:
    """What public models of a range do.

    Attributes:
        least: Share of the untied model that one table is, at least.
        tied, models: How many of them tie.
    """

    least: float
    tied: int
    models: int


PRACTICE = (Practice(0.10, 21, 28), Practice(0.05, 12, 28), Practice(0.0, 10, 55))
"""Public configs, each model once, by share: what transformers 5.24 builds of them. Practice, not proof."""
