"""The command, run in this process."""

from tests.cli.conftest import run as run
