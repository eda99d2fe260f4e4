"""The errors that say that this machine does not have what a choice takes: every run with that choice ends with it."""

from ...strategies.core.errors import MissingToolError
from ...tasks.errors import MissingDataError
from ...tracking.errors import TrackerMissingError

LACKS = (MissingDataError, MissingToolError, TrackerMissingError)
