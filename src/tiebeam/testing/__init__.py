"""For tests of tiebeam and of code built on it: measurements that share no code with the trace."""

from tiebeam.testing.probe import Probed as Probed
from tiebeam.testing.probe import probe_table as probe_table
