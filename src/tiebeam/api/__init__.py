"""The public calls."""

from tiebeam.api.initialization import initialize as initialize
from tiebeam.api.inspection import inspect as inspect
