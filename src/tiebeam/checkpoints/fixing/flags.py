"""The config of a mended checkpoint: the flag said once and alike in every scope, everything else as it was."""

import copy
from collections.abc import Mapping
from typing import Any

from tiebeam.checkpoints.declared import FLAG, declare
from tiebeam.checkpoints.families import OTHER_FLAGS, family_of, tying_of
from tiebeam.errors import CheckpointError

Change = tuple[str, bool | None, bool]


def with_flag(config: Mapping[str, Any], tie: bool) -> tuple[dict[str, Any], tuple[Change, ...]]:
    """A config that says `tie`, and what was changed.

    The flag is written at the top, in every scope that has it, and, where the family reads an inner scope, there.

    Raises:
        CheckpointError: The family does not do what a flag says.

    Example:
        >>> with_flag({"model_type": "llama", "tie_word_embeddings": False}, True)[1]
        (('tie_word_embeddings', False, True),)
    """
    made = copy.deepcopy(dict(config))
    changes: list[Change] = []
    family = family_of(made)
    paths = {"", *(path for path, _ in declare(made).scopes)}
    inner = family.inner if family is not None else ""
    paths |= {inner} if isinstance(made.get(inner), dict) else set()
    for path in sorted(paths):
        scope = _scope(made, path)
        before = scope.get(FLAG)
        if before is not tie:
            scope[FLAG] = tie
            changes.append((f"{path}.{FLAG}" if path else FLAG, before if isinstance(before, bool) else None, tie))
    for name, means in OTHER_FLAGS.items():
        if isinstance(made.get(name), bool) and made[name] is not (means is tie):
            changes.append((name, made[name], means is tie))
            made[name] = means is tie
    built = tying_of(made)
    if built.effective is not tie:
        raise CheckpointError(
            f"no flag makes this family {'tied' if tie else 'untied'}",
            got=built.why,
            hint="keep the file as it is, or change the model's type",
        )
    return made, tuple(changes)


def _scope(config: dict[str, Any], path: str) -> dict[str, Any]:
    for part in path.split(".") if path else ():
        config = config[part]
    return config
