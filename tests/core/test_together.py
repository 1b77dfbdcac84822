"""A setting of the whole process that several threads want at once."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tiebeam.core.together import Together


def test_the_last_to_leave_puts_back_what_the_first_found_in_whatever_order_they_leave() -> None:
    setting = ["before"]

    @contextmanager
    def during() -> Iterator[None]:
        found, setting[0] = setting[0], "during"
        try:
            yield
        finally:
            setting[0] = found

    together = Together(during)
    first, second = ExitStack(), ExitStack()
    for _ in range(2):  # it can be used again
        first.enter_context(together)
        second.enter_context(together)
        first.close()
        assert setting == ["during"]
        second.close()
        assert setting == ["before"]
