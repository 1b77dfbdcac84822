"""What model families do with the flag, as data: `families.json`, made from transformers 5.24 and tested against it.

A row's `flags` are what a config of the family ends up with, for the flag absent, False and True (of a nested config:
for each of these at the top, the same three in its `inner` scope, by which the inner model may tie its ends itself).
`table` and `readout` are the parameters that the class ties where the flag is true; a row without them is of a class
that ties nothing itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tiebeam.checkpoints.declared import FLAG, declare
from tiebeam.checkpoints.scopes import ABSENT, read

SAID = (None, False, True)


@dataclass(frozen=True, slots=True)
class Family:
    """One row.

    Attributes:
        kind: The config's `model_type`.
        flags: "T" or "F" for each of `SAID`, or for each pair of them.
        inner: The scope of the language model in a nested config, or "".
        table: Parameter that the class ties to; "" where it ties none.
        readout: Parameter that it ties.
    """

    kind: str
    flags: str
    inner: str = ""
    table: str = ""
    readout: str = ""

    @property
    def always(self) -> bool:
        """Whether it ties whatever the flag says."""
        return "F" not in self.flags and bool(self.table)

    def flag(self, config: object) -> bool:
        """The flag that the family's config ends up with."""
        at = SAID.index(said(config))
        if self.inner:
            inner = read(config, self.inner)
            at = 3 * at + SAID.index(None if inner is ABSENT else said(inner))
        return self.flags[at] == "T"


def said(scope: object) -> bool | None:
    """The flag as one scope has it; None where it has none."""
    value = read(scope, FLAG)
    return None if value is ABSENT or value is None else bool(value)


@cache
def families() -> dict[str, Family]:
    """Every family that is known, by model type."""
    text = files("tiebeam.checkpoints").joinpath("families.json").read_text(encoding="utf-8")
    return {kind: Family(kind, **row) for kind, row in json.loads(text).items()}


def family_of(config: object) -> Family | None:
    """The family of a config by its `model_type`, or None."""
    kind = read(config, "model_type")
    return families().get(kind) if isinstance(kind, str) else None


@dataclass(frozen=True, slots=True)
class Tying:
    """What a config means for the tie.

    Attributes:
        declared: What the config says; None where it is silent or contradicts itself.
        effective: Whether a reader that goes by it builds one table; None where that is not known.
        family: The row that was used, or None.
        flag: The field and scope that spoke, or "".
        why: In words, where `effective` is not simply what is declared.
    """

    declared: bool | None
    effective: bool | None
    family: Family | None = None
    flag: str = ""
    why: str = ""


# Fields of other codebases that mean the same; True where the field's truth means a tie.
OTHER_FLAGS: Mapping[str, bool] = {
    "weight_tying": True,  # OLMo
    "tie_weights": True,
    "tie_embeddings": True,  # mamba, lit-gpt's ports
    "tied_embeddings": True,
    "tie_embedding_weights": True,  # keras-hub
    "logits_via_embedding": True,  # T5X, MaxText
    "share_embeddings": True,
    "share_decoder_input_output_embed": True,  # fairseq
    "share_all_embeddings": True,
    "share_embeddings_and_output_weights": True,  # Megatron-LM
    "untie_embeddings_and_output_weights": False,
    "no-weight-tying": False,  # GPT-NeoX
    "no_weight_tying": False,
}


# Where not the class but a part of it ties: the scope whose flag that part reads, and the part's default. Seen by
# building each without memory, with transformers 5.24.
DECIDED_BY_A_PART: Mapping[str, tuple[str, bool]] = {
    "blip-2": ("text_config", True),
    "instructblip": ("text_config", True),
    "instructblipvideo": ("text_config", True),
    "kosmos-2.5": ("text_config", True),
    "llama4": ("text_config", False),
    "pix2struct": ("", False),
    "blt": ("", False),
}


def tying_of(config: Mapping[str, Any] | None) -> Tying:
    """What a config declares and what a model built from it does.

    Example:
        >>> tying_of({"model_type": "gpt2"}).effective, tying_of({"model_type": "llama"}).effective
        (True, False)
        >>> tying_of({"model_type": "t5", "tie_word_embeddings": False}).why
        "families of 't5' tie whatever the flag says"
    """
    if config is None:
        return Tying(None, None, why="there is no config")
    scopes = declare(config).scopes
    flags = {flag for _, flag in scopes}
    declared = next(iter(flags)) if len(flags) == 1 else None
    where = ", ".join(f"{path}.{FLAG}" if path else FLAG for path, _ in scopes)
    if not scopes:
        declared, where = _other(config)
    family = family_of(config)
    if family is None:
        return Tying(declared, declared, None, where, "" if declared is not None else _why_unknown(config, flags))
    effective, why = _built(family, config, scopes)
    return Tying(declared, effective, family, where, why)


def _by_a_part(family: Family, config: object) -> tuple[bool | None, str]:
    scope, default = DECIDED_BY_A_PART[family.kind]
    part = read(config, scope) if scope else config
    if scope and not family.table and isinstance(part, Mapping) and family_of(part) is not None:
        return tying_of(part).effective, f"its {scope} decides"
    flag = None if part is ABSENT else said(part)
    where = f"the part that reads {scope}" if scope else "a part of it"
    return default if flag is None else flag, f"not the class of '{family.kind}' ties, but {where}"


def _built(family: Family, config: object, scopes: tuple[tuple[str, bool], ...]) -> tuple[bool | None, str]:
    if family.kind in DECIDED_BY_A_PART:
        return _by_a_part(family, config)
    if not family.table:
        inner = read(config, family.inner) if family.inner else ABSENT
        if not isinstance(inner, Mapping) or family_of(inner) is None:
            return False, f"the class of '{family.kind}' ties nothing itself"
        built = tying_of(inner)
        return built.effective, f"its {family.inner} decides"
    if not family.inner and scopes and all(path for path, _ in scopes):
        return None, f"the flag stands in {scopes[0][0]} alone, a scope that configs of '{family.kind}' do not have"
    flag = family.flag(config)
    if family.always:
        return flag, f"families of '{family.kind}' tie whatever the flag says"
    if not scopes:
        return flag, f"the default of '{family.kind}' is {flag}"
    return flag, ""


def _other(config: object) -> tuple[bool | None, str]:
    for name, means in OTHER_FLAGS.items():
        value = read(config, name)
        if isinstance(value, bool):
            return value is means, name
    return None, ""


def _why_unknown(config: object, flags: set[bool]) -> str:
    kind = read(config, "model_type")
    if len(flags) > 1:
        return "its scopes disagree, and which of them is read is not known"
    return f"the config has no flag, and the default of {kind!r} is not known" if kind is not ABSENT else "no flag"
