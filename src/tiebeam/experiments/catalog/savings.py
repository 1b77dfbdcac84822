"""What tying saves: parameters counted on the model itself, beside the formula and the sources' figures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.experiments.spec import Experiment, Settings, Work
from tiebeam.experiments.tables import Table

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

LLAMA_BODY = 6_979_588_096
"""The lesson's count of Llama 3 8B without its tables: grouped attention, which MiniGPT has not."""

SHAPES: tuple[dict[str, Any], ...] = (
    {"model": "TinyLM of the lesson", "vocab": 1000, "width": 64, "layers": 0, "block": 0, "body": 64 * 64 + 64},
    {"model": "GPT-2 small", "vocab": 50_257, "width": 768, "layers": 12, "block": 1024, "body": None},
    {"model": "Llama 3 8B", "vocab": 128_256, "width": 4096, "layers": 32, "block": 0, "body": LLAMA_BODY},
    {"model": "large vocabulary, small body", "vocab": 50_257, "width": 128, "layers": 6, "block": 256, "body": None},
    {"model": "characters", "vocab": 96, "width": 256, "layers": 6, "block": 256, "body": None},
    {"model": "exercise, width 512", "vocab": 32_000, "width": 512, "layers": 6, "block": 0, "body": 20_000_000},
    {
        "model": "exercise, width 4096",
        "vocab": 32_000,
        "width": 4096,
        "layers": 6,
        "block": 0,
        "body": 20_000_000 * 64,
    },
)
SOURCE_UNTIED = {"TinyLM of the lesson": 132_160, "GPT-2 small": 163_037_184, "Llama 3 8B": 8_030_261_248}
SOURCE_TIED = {"TinyLM of the lesson": 68_160, "GPT-2 small": 124_439_808, "Llama 3 8B": 7_504_924_672}
SOURCE_SHARE = {
    "GPT-2 small": 23.7,
    "Llama 3 8B": 6.5,
    "large vocabulary, small body": 45.3,
    "characters": 0.5,
    "exercise, width 512": 31.1,
    "exercise, width 4096": 8.5,
}
"""The lesson, its exercise, and the from-scratch page, which does not say what its toys are. Unit: %."""


def runs(settings: Settings) -> list[dict[str, Any]]:
    """One for each shape."""
    return [dict(shape) for shape in SHAPES if shape["vocab"] <= settings["largest"]]


def work(given: Work) -> Mapping[str, float]:
    """Count a model that has no memory for its weights, tied and untied."""
    config = given.config
    if config["body"] is not None:
        table = config["vocab"] * config["width"]
        return {"tied": config["body"] + table, "untied": config["body"] + 2 * table}
    import torch

    from tiebeam.zoo.torch.minigpt import MiniGPT, MiniGPTConfig

    counts = {}
    for tie in (True, False):
        with torch.device("meta"):
            model = MiniGPT(
                MiniGPTConfig(
                    vocab=config["vocab"],
                    width=config["width"],
                    layers=config["layers"],
                    heads=max(config["width"] // 64, 1),
                    block_size=config["block"],
                    bias=True,
                    tie=tie,
                )
            )
        counts["tied" if tie else "untied"] = float(sum(p.numel() for p in model.parameters()))
    return counts


def tables(runs: "Sequence[Run]") -> list[Table]:
    """Counts, the share saved, and the formula that the lesson takes for exact."""
    columns = (
        "model",
        "vocab x width",
        "untied",
        "source",
        "tied",
        "source",
        "saved",
        "source, %",
        "V d / (12 L d^2 + 2 V d)",
    )
    rows = []
    for run in runs:
        name, table = str(run.config["model"]), run.config["vocab"] * run.config["width"]
        tied, untied = int(run.results["tied"]), int(run.results["untied"])
        body = 12 * run.config["layers"] * run.config["width"] ** 2
        saved = f"{100 * (untied - tied) / untied:.1f} %"
        approximate = f"{100 * table / (body + 2 * table):.1f} %" if body else None
        counted = (untied, SOURCE_UNTIED.get(name), tied, SOURCE_TIED.get(name))
        rows.append((name, table, *counted, saved, SOURCE_SHARE.get(name), approximate))
    notes = (
        "Tying removes vocab x width parameters, never half of a model that has a body.",
        "Llama's body and those of the exercise are given, the others are counted on MiniGPT.",
    )
    return [Table("What tying saves", columns, tuple(rows), notes)]


EXPERIMENT = Experiment(
    name="savings",
    claim="Tying removes exactly vocab x width parameters: a quarter of GPT-2 small, a fifteenth of an 8B model.",
    source="Inside a Transformer Block (GPT-2 small, Llama 3 8B, exercise); Deep learning from zero, day 67 (the end)",
    profiles={"paper": {"largest": 10**6}, "laptop": {"largest": 10**6}, "smoke": {"largest": 50_000}},
    runs=runs,
    work=work,
    tables=tables,
    main="tied",
    packages=("torch",),
)
