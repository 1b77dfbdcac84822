"""What cannot be run again on a mesh whose axes are explicit, said so."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from tiebeam.backends.protocol import RefusedError
from tiebeam.errors import InputError, TiebeamError


@contextmanager
def explicit_axes_said(arrays: Sequence[Any]) -> Iterator[None]:
    """Where arrays lie on a mesh with explicit axes, say so when a program fails that ran there by itself.

    Its operations are run one by one, with tables of the roles' own: what JAX must be told of their sharding, the
    program says of its own operations alone.

    Raises:
        InputError: It failed.
    """
    try:
        yield
    except (TiebeamError, RefusedError):
        raise
    except Exception as error:
        kinds = [getattr(getattr(jax.typeof(a), "sharding", None), "mesh", None) for a in arrays]
        if not any("Explicit" in str(getattr(mesh, "axis_types", "")) for mesh in kinds):
            raise
        raise InputError(
            "the roles cannot be told apart on a mesh with explicit axes",
            got=f"{type(error).__name__}: {error}".splitlines()[0],
            expected="arrays on one device, or on a mesh whose axes are automatic",
            hint="jax.device_get(params) brings a copy; axis_types=(jax.sharding.AxisType.Auto, ...) makes such a mesh",
        ) from error
