import threading
import warnings

import pytest

from paceline.sweep.quiet import quiet


def test_the_first_thread_to_leave_does_not_end_the_silence_of_another() -> None:
    inside, left = threading.Event(), threading.Event()
    said: list[str] = []

    def other() -> None:
        with quiet():
            inside.set()
            assert left.wait(10)
            try:
                warnings.warn("of the other", UserWarning, stacklevel=1)
            except UserWarning as warning:
                said.append(str(warning))

    before = list(warnings.filters)
    with quiet():
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
    left.set()
    thread.join(10)
    assert not thread.is_alive() and not said
    assert list(warnings.filters) == before
    with pytest.raises(UserWarning, match="afterwards"):
        warnings.warn("afterwards", UserWarning, stacklevel=1)


def test_an_error_inside_ends_the_silence() -> None:
    with pytest.raises(KeyError), quiet():
        raise KeyError
    with pytest.raises(UserWarning):
        warnings.warn("afterwards", UserWarning, stacklevel=1)
