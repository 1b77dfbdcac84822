"""A Keras model as `model.keras`, by Keras itself, and `report.json` beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.errors import TargetError

if TYPE_CHECKING:
    from tiebeam.core.report import Report


def write(model: Any, params: None, report: "Report", folder: Path) -> None:
    """Write the model with its weights, not compiled.

    Raises:
        TargetError: It is a layer and no model, or one that Keras cannot write.
    """
    if not hasattr(model, "save"):
        raise TargetError(
            f"{type(model).__name__} is a layer, and Keras writes models",
            hint="return a keras.Model around it",
        )
    try:
        model.save(folder / "model.keras")
    except (TypeError, ValueError, NotImplementedError) as e:  # a config that cannot be had, mostly
        raise TargetError(
            f"Keras cannot write {type(model).__name__}",
            got=f"{type(e).__name__}: {e}".splitlines()[0][:300],
            hint="give its class get_config, and register it by @keras.saving.register_keras_serializable()",
        ) from e
    (folder / "report.json").write_text(report.to_json() + "\n", encoding="utf-8")
