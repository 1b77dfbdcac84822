"""Which family an optimizer of PyTorch is of."""

from collections.abc import Mapping
from typing import Any

from tiebeam.core.training.optimizers import family_of_class


def family_in(optimizer: Any, group: Mapping[str, Any]) -> str | None:
    """The family of a group: what its optimizer's class is called, and how it decays."""
    found = family_of_class(type(optimizer))
    # One class may hold both kinds of group: its own flag says which is whose.
    if found == "muon" and group.get("use_muon") is False:
        return "adamw"
    # Adam with decay beside the step is AdamW, whatever the class is called.
    if found == "adam" and (group.get("decoupled_weight_decay") or getattr(optimizer, "adam_w_mode", 0)):
        return "adamw"
    if found == "adafactor" and group.get("scale_parameter") is False:
        return "adafactor-unscaled"
    return found
