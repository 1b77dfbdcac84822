"""The public calls."""

from tiebeam.api.initialization import initialize as initialize
from tiebeam.api.initialization import initialize_params as initialize_params
from tiebeam.api.inspection import inspect as inspect
