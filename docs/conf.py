"""Sphinx: MyST pages, furo, every warning an error; builds without a network."""

import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "src"))

os.environ.setdefault("KERAS_BACKEND", "jax")  # TensorFlow and PyTorch do not get on in one process

import _generate  # noqa: E402  (lies beside this file)

project = "tiebeam"
author = "The tiebeam authors"
copyright = f"2026, {author}"
release = version = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "generated"]
nitpicky = True
default_role = "code"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# A record is read, not built: its fields say more than its signature.
autodoc_class_signature = "separated"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = False
napoleon_use_rtype = False  # types stand in the signatures; what "Returns:" begins with is prose
# Without a network there is no inventory to resolve other projects' names against.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(torch|numpy|np|nn|collections|typing|types|pathlib|rich|typer|transformers|jax|optax|keras|flax|equinox)\..*",
    ),
    (r"py:.*", r"tiebeam\.zoo\.torch\.llama\.Llama"),  # a module like any other
    (r"py:.*", r"tiebeam\.backends\.keras\.optimizers\.grouped\.GroupedOptimizer"),  # an optimizer like any other
    (r"py:.*", r"tiebeam\.blocks\.jax\.Initializer"),  # a function of a key, a shape and a dtype
    (r"py:.*", r"(Any|Callable|Collection|Mapping|Sequence|Iterable|Literal|Path|Self|Module|Tensor)"),
]

html_theme = "furo"
html_title = f"tiebeam {release}"


def setup(app: object) -> None:
    """Write the pages that the code describes better than a hand could."""
    _generate.write(HERE / "generated")
