"""The public calls."""

from tiebeam.api.advising import advise as advise
from tiebeam.api.guarding import guard as guard
from tiebeam.api.initialization import initialize as initialize
from tiebeam.api.initialization import initialize_params as initialize_params
from tiebeam.api.inspection import inspect as inspect
from tiebeam.api.measurement import check_gradients as check_gradients
from tiebeam.api.measurement import measure as measure
from tiebeam.api.optimizers import inspect_optimizer as inspect_optimizer
from tiebeam.api.quantising import sensitivity as sensitivity
from tiebeam.api.resizing import resize as resize
from tiebeam.api.resizing import resize_params as resize_params
from tiebeam.api.saving import load as load
from tiebeam.api.saving import save as save
from tiebeam.api.tying import retie as retie
from tiebeam.api.tying import tie as tie
from tiebeam.api.tying import ties as ties
from tiebeam.api.tying import untie as untie
from tiebeam.api.watching import Watch as Watch
