"""Sizes of the language models that experiments train, and of their training, by profile."""

from typing import Any

PAPER: dict[str, Any] = {
    "layers": 4,
    "block": 128,
    "batch": 32,
    "warmup": 50,
    "steps": 800,
    "validation": 64,
    "data": "wikitext-2",
    "vocab": None,
}
"""The protocol of AnyInit's page; its widths are 128 and 512."""

LAPTOP: dict[str, Any] = {
    "layers": 2,
    "block": 64,
    "batch": 8,
    "warmup": 16,
    "steps": 300,
    "validation": 32,
    "data": "stdlib",
    "vocab": 2048,
}

SMOKE: dict[str, Any] = {
    "layers": 1,
    "block": 32,
    "batch": 4,
    "warmup": 4,
    "steps": 12,
    "validation": 8,
    "data": "stdlib",
    "vocab": 512,
}

TRAINED = ("layers", "block", "batch", "warmup", "validation", "steps")
"""Settings that every run's config carries."""
