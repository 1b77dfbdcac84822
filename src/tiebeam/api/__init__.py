"""The public calls."""

from tiebeam.api.inspection import inspect as inspect
