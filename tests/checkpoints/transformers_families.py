"""What transformers itself says of its families: which flag each config ends up with, and what each class ties."""

import json
import logging
import warnings
from typing import Any

AUTO = (
    "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_MULTIMODAL_LM",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL_FOR_MASKED_LM", "MODEL_FOR_PRETRAINING",
)  # fmt: skip
INNER = ("text_config", "decoder", "thinker_config")
FLAG = "tie_word_embeddings"
SAID: tuple[dict[str, bool], ...] = ({}, {FLAG: False}, {FLAG: True})
READOUTS = ("loss", "embed_out", "head", "decoder", "output", "proj", "generator", "cls", "unembed")
# FSMT ties its ends in a method of its own, where the flag is true, and declares no keys.
UNDECLARED = {"fsmt": ("model.decoder.output_projection.weight", "model.decoder.embed_tokens.weight")}
# The text model ties its ends by its own scope, whatever the flag above it says.
INSIDE = frozenset(("kosmos-2",))
LOOKUPS = ("embed", "shared", "wte", "emb", "w")


def families() -> dict[str, dict[str, Any]]:
    """One row a model type: see `tiebeam.checkpoints.families`."""
    from transformers import CONFIG_MAPPING

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    try:
        found = {kind: row for kind in sorted(CONFIG_MAPPING.keys()) if (row := family(kind)) is not None}
    finally:
        logging.disable(logging.NOTSET)
    return found


def family(kind: str) -> dict[str, Any] | None:
    """None where no class of the type has a vocabulary, or where its config cannot be made of a flag alone."""
    from transformers import CONFIG_MAPPING

    classes = list(_classes(kind))
    if not classes:
        return None
    _, pair = next(((c, p) for c in classes if (p := _pair(c)) is not None), (classes[0], UNDECLARED.get(kind)))
    config = CONFIG_MAPPING[kind]
    subs = getattr(config, "sub_configs", None) or {}
    inner = next((name for name in INNER if name in subs), None)
    try:
        made = [config.from_dict(json.loads(json.dumps(d))) for d in _said(inner)]
    except Exception:  # noqa: BLE001 - each family validates in its own way, and there are hundreds
        return None
    scopes = ["", inner] if kind in INSIDE else [""]
    row: dict[str, Any] = {"flags": "".join("FT"[any(_flag(c, scope) for scope in scopes)] for c in made)}
    row |= {} if inner is None else {"inner": inner}
    return row | ({} if pair is None else {"readout": pair[0], "table": pair[1]})


def _flag(config: Any, scope: str | None) -> bool:
    return bool(getattr(getattr(config, scope) if scope else config, FLAG, False))


def _classes(kind: str) -> Any:
    import transformers
    from transformers.models.auto import modeling_auto

    for auto in AUTO:
        names = getattr(modeling_auto, f"{auto}_MAPPING_NAMES").get(kind, ())
        for name in (names,) if isinstance(names, str) else names:
            found = getattr(transformers, name, None)
            if found is not None:
                yield found


def _pair(cls: Any) -> tuple[str, str] | None:
    keys = cls._tied_weights_keys
    for target, source in (keys or {}).items() if isinstance(keys, dict) else ():
        inside = target.removesuffix(".weight").lower(), source.removesuffix("$").removesuffix(".weight").lower()
        fits = any(w in inside[0] for w in READOUTS) and any(w in inside[1].rsplit(".", 1)[-1] for w in LOOKUPS)
        if target.endswith("weight") and fits and "embed_tokens" not in inside[0] and "entity" not in inside[0]:
            return target, source.removesuffix("$")
    return None


def _said(inner: str | None) -> list[dict[str, Any]]:
    if inner is None:
        return list(SAID)
    return [{**outer, inner: dict(within)} for outer in SAID for within in SAID]
