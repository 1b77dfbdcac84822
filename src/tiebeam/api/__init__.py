"""The public calls."""

from tiebeam.api.advising import advise as advise
from tiebeam.api.initialization import initialize as initialize
from tiebeam.api.initialization import initialize_params as initialize_params
from tiebeam.api.inspection import inspect as inspect
from tiebeam.api.measurement import check_gradients as check_gradients
from tiebeam.api.measurement import measure as measure
from tiebeam.api.optimizers import inspect_optimizer as inspect_optimizer
from tiebeam.api.quantising import sensitivity as sensitivity
from tiebeam.api.watching import Watch as Watch
