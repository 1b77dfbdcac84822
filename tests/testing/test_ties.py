"""What whoever builds models writes into their own tests."""

import copy
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.torch.operations.models import IDS, LM
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

import tiebeam
import tiebeam.testing
from tiebeam.testing import assert_survives, assert_tied

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def test_a_tied_model_passes_and_others_do_not() -> None:
    assert_tied(LM(), IDS)
    for model in (LM(tied=False), untied()):
        with pytest.raises(tiebeam.TieBroken, match="LM is not tied"):
            assert_tied(model, IDS)


def untied() -> LM:
    model = LM()
    tiebeam.untie(model, IDS)
    return model


@pytest.mark.parametrize("operation", [copy.deepcopy, AveragedModel, torch.nn.Module.double, torch.nn.Module.eval])
def test_what_keeps_a_tie_passes(operation: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    assert_survives(LM(), operation)


def test_what_parts_it_does_not_in_place_or_in_what_is_returned() -> None:
    with pytest.raises(tiebeam.TieBroken, match=r"l1_unstructured\(m\.head"):
        assert_survives(LM(), lambda m: prune.l1_unstructured(m.head, "weight", 0.5))

    def copied(model: LM) -> LM:
        other = copy.deepcopy(model)
        other.head = copy.deepcopy(other.head)
        return other

    with pytest.raises(tiebeam.TieBroken):
        assert_survives(LM(), copied)
    with pytest.raises(tiebeam.InputError, match="no tie"):
        assert_survives(LM(tied=False), copied, IDS)


def test_the_plugin_hands_both_to_a_test_that_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
        import torch
        from tests.torch.operations.models import IDS, LM

        def test_tied(assert_tied):
            assert_tied(LM(), IDS)

        def test_not_tied(assert_tied):
            assert_tied(LM(tied=False), IDS)

        def test_survives(assert_survives):
            assert_survives(LM(), lambda m: m.double())

        def test_does_not(assert_survives):
            assert_survives(LM(), lambda m: setattr(m, "head", torch.nn.Linear(16, 50)))
        """)
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tiebeam.testing.plugin", "-p", "no:cacheprovider", str(tmp_path),
         "--rootdir", str(tmp_path), "-c", "/dev/null"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # installed, the plugin would be there twice
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        },
    )  # fmt: skip
    assert "2 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "LM is not tied" in ran.stdout
    assert "no longer one parameter" in ran.stdout
    assert "raise TieBroken" not in ran.stdout  # the lines of the test, and not ours
    assert "raise _broken" not in ran.stdout


def test_what_there_is_can_be_listed() -> None:
    assert {"assert_tied", "assert_survives", "BackendContract"} <= set(dir(tiebeam.testing))


def test_the_plugin_loads_no_framework() -> None:
    """It is imported at every start of pytest where tiebeam is installed."""
    code = "import sys, tiebeam\ntiebeam.testing.assert_tied\nimport tiebeam.testing.plugin\n"
    code += "print([m for m in ('torch', 'jax', 'keras') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
