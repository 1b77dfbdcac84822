"""What an import may load, seen from a fresh interpreter."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

FRAMEWORKS = ("torch", "jax", "flax", "equinox", "keras", "tensorflow", "transformers", "accelerate", "peft")
OWN = {  # what a module for one framework may load, which that framework is built on
    "torch": ("torch",),
    "linen": ("jax", "flax"),
    "nnx": ("jax", "flax"),
    "equinox": ("jax", "equinox"),
    "keras": ("keras", "jax"),  # jax: the Keras backend of the tests
}
TERMINAL = ("rich", "typer", "click")
HELP = """
from tiebeam.cli import main
try:
    main({args!r})
except SystemExit as stop:
    assert not stop.code, f"exit code {{stop.code}}"
"""


def run(code: str) -> str:
    keras_on_jax = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=keras_on_jax)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_loads_none_of(modules: tuple[str, ...], code: str) -> None:
    """Run `code` in a new interpreter; fail where one of `modules` is loaded afterwards."""
    probe = f"{code}\nimport sys\nprint('loaded:', *sorted(set({modules!r}) & set(sys.modules)))"
    loaded = run(probe).splitlines()[-1].removeprefix("loaded:").split()
    assert not loaded, f"{code.strip().splitlines()[0]!r} loads {', '.join(loaded)}"


def test_importing_tiebeam_loads_no_framework_and_no_terminal_library() -> None:
    assert_loads_none_of(FRAMEWORKS + TERMINAL, "import tiebeam")


def test_naming_every_public_thing_loads_no_framework() -> None:
    assert_loads_none_of(FRAMEWORKS + TERMINAL, "import tiebeam; [getattr(tiebeam, name) for name in tiebeam.__all__]")


@pytest.mark.parametrize("name", OWN)
def test_a_module_for_one_framework_loads_that_one_alone(name: str) -> None:
    others = tuple(framework for framework in FRAMEWORKS if framework not in OWN[name])
    assert_loads_none_of(others, f"import tiebeam.{name}; tiebeam.{name}.TiedEmbedding")


def test_the_module_that_jax_models_are_trained_with_loads_no_other_framework() -> None:
    others = tuple(framework for framework in FRAMEWORKS if framework != "jax")
    assert_loads_none_of(others, "import tiebeam; tiebeam.jax.optimizer")


def test_making_a_keras_optimizer_loads_no_framework_but_the_one_that_computes() -> None:
    code = (
        "import keras, tiebeam\n"
        "from tiebeam.zoo.keras.gpt import gpt\n"
        "model = gpt('D', vocab=99, width=16, layers=1)\n"
        "tiebeam.keras.optimizer(keras.optimizers.AdamW, model, tiebeam.inspect(model), lr=1e-3, weight_decay=0.5)"
    )
    assert_loads_none_of(("tensorflow", "torch"), code)


def test_a_module_for_a_framework_is_there_without_an_import_of_its_own() -> None:
    assert_loads_none_of(("jax", "keras"), "import tiebeam; tiebeam.torch.TiedEmbedding(4, 2)")
    assert_loads_none_of(FRAMEWORKS, "import tiebeam, inspect; inspect.getmembers(tiebeam)")


@pytest.mark.parametrize(
    "args", [["--help"], *([name, "--help"] for name in ("inspect", "init", "advise", "checkpoint", "demo"))]
)
def test_asking_the_command_line_for_help_loads_no_framework(args: list[str]) -> None:
    assert_loads_none_of(FRAMEWORKS, HELP.format(args=args))


def test_the_check_itself_notices_a_module_that_is_loaded() -> None:
    with pytest.raises(AssertionError, match="loads json"):
        assert_loads_none_of(("json", "torch"), "import json")


def test_the_check_itself_notices_code_that_fails() -> None:
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        assert_loads_none_of(("torch",), "import tiebeam_that_is_not_there")


def test_every_public_name_exists_and_star_import_gives_exactly_those() -> None:
    run(
        "import tiebeam\n"
        "names = {}\n"
        "exec('from tiebeam import *', names)\n"
        "names.pop('__builtins__')\n"
        "assert sorted(names) == sorted(tiebeam.__all__), names\n"
        "assert set(tiebeam.__all__) <= set(dir(tiebeam))"
    )


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import tiebeam

    with pytest.raises(AttributeError, match="no attribute 'tie_everything'"):
        _ = tiebeam.tie_everything


def test_a_report_can_show_itself_after_importing_tiebeam_alone() -> None:
    run(
        "import tiebeam\n"
        "report = tiebeam.Report(model='Tiny', framework='torch')\n"
        "assert 'Tiny' in report.to_markdown() and 'Tiny' in report.to_html() and 'Tiny' in str(report)"
    )


def test_importing_the_testing_tools_loads_no_framework_and_no_test_runner() -> None:
    assert_loads_none_of((*FRAMEWORKS, "pytest", "hypothesis", "jsonschema"), "import tiebeam.testing")


def test_the_contract_without_what_it_needs_says_which_extra_gives_it() -> None:
    run(
        "import sys\n"
        "sys.modules['hypothesis'] = None\n"
        "try:\n"
        "    from tiebeam.testing import BackendContract\n"
        "except ModuleNotFoundError as error:\n"
        "    assert 'needs hypothesis' in str(error) and 'tiebeam[testing]' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('it was found')"
    )


def test_the_testing_tools_have_no_other_names() -> None:
    import tiebeam.testing

    with pytest.raises(AttributeError, match="no attribute 'BackendContracts'"):
        _ = tiebeam.testing.BackendContracts
