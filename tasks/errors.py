"""The errors that may occur before the first sample.

`exit_code` is the program's exit status; the message is one sentence for the user.
"""


class SampleError(ValueError):
    """A sample that is read when it is wanted is not what the first one was; the message names it."""

    exit_code = 7


class MissingDataError(FileNotFoundError):
    """The data are not on this machine; the message says how to get them."""

    exit_code = 3


class CorruptDataError(ValueError):
    """A data file is there and is not what it should be; the message names it."""

    exit_code = 7
