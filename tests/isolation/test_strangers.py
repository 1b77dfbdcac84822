"""What is said of something that is no model, and of a framework that is not installed."""

import os
import subprocess
import sys

import pytest

import tiebeam

pytestmark = pytest.mark.slow

ABSENT = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
try:
    {code}
except Exception as error:
    print(f"{{type(error).__name__}} {{isinstance(error, ImportError)}}: {{error}}")
"""


def without(absent: tuple[str, ...], code: str) -> str:
    """What is raised by one line where these modules are not installed."""
    done = subprocess.run(
        [sys.executable, "-c", ABSENT.format(absent=absent, code=code)],
        capture_output=True, text=True, check=False, env={**os.environ, "KERAS_BACKEND": "jax"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("module", "absent", "needs", "extra"),
    [
        ("torch", ("torch",), "PyTorch", "torch"),
        ("jax", ("jax",), "JAX", "optax"),
        ("jax", ("optax",), "optax", "optax"),
        ("keras", ("keras",), "Keras", "keras"),
        ("linen", ("flax",), "Flax", "flax"),
        ("nnx", ("jax",), "JAX", "flax"),
        ("equinox", ("equinox",), "Equinox", "equinox"),
    ],
)
def test_a_module_whose_framework_is_absent_says_which_extra_brings_it(
    module: str, absent: tuple[str, ...], needs: str, extra: str
) -> None:
    said = without(absent, f"import tiebeam.{module}")
    assert said.startswith(f"MissingFrameworkError True: tiebeam.{module} needs {needs}\n"), said
    assert f"Hint: pip install 'tiebeam[{extra}]'" in said


def test_what_else_is_absent_is_raised_as_it_is() -> None:
    said = without(("numpy",), "import tiebeam.torch")
    assert said.startswith("ModuleNotFoundError True"), said


@pytest.mark.parametrize("absent", [("jax",), ()], ids=["not installed", "not imported"])
def test_a_function_beside_params_is_told_that_it_needs_jax(absent: tuple[str, ...]) -> None:
    said = without(absent, "import tiebeam; tiebeam.inspect(lambda p, x: x, 1, params={'a': 1})")
    assert "pass params=" not in said
    assert ("pip install 'tiebeam[jax]'" if absent else "import jax first") in said
    assert "a function beside params" in said


@pytest.mark.parametrize(
    ("thing", "complaint"),
    [
        ("gpt2", r"(?s)'gpt2' is a name, not a model.*from a shell: tiebeam inspect gpt2; in Python build"),
        ("x" * 999, r"'x{60}\.\.\.' is a name"),
        (len, r"(?s)look at a builtin_function_or_method alone.*pass params="),
        (int, r"int is a class, and of no kind of model"),
        (3, r"(?s)cannot look at a int.*keras.Layer, torch.nn.Module, flax.linen.Module"),
    ],
)
def test_what_is_no_model_is_called_what_it_is(thing: object, complaint: str) -> None:
    with pytest.raises(tiebeam.BackendError, match=complaint) as raised:
        tiebeam.inspect(thing)
    assert ".src." not in str(raised.value)
    assert "._module" not in str(raised.value)
