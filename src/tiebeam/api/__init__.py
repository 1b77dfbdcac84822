"""The public calls."""

from tiebeam.api.initialization import initialize as initialize
from tiebeam.api.initialization import initialize_params as initialize_params
from tiebeam.api.inspection import inspect as inspect
from tiebeam.api.optimizers import inspect_optimizer as inspect_optimizer
