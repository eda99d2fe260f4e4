"""Describes an exception: whether it is a user's, what the machine lacked, in which line it arose, in few words.

An exception's own attributes are not trusted, unless its class is ours: a user's may have any attributes.
"""

import errno
import resource
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ...compat.full_disk import NUMBERS, says_unwritten, why_unwritten
from ...compat.full_gpu import says_full
from ...conf.errors import ConfigError
from ...tracking.columns import human_bytes
from ...tracking.errors import StorageError
from ...tracking.redact import hide_known
from ...tracking.visible import visible
from .errors import MachineError, WorkerFailedError

LONGEST = 4000  # characters of a message that are shown; a log has all of it
_HEAD = 3 * LONGEST // 4
_OURS = "paceline"
# a sentence without the error's type
OWN_WORDS = ("Killed", "Exited", "ForkServer", "HangError", "DivergedError", "NotFiniteError")
NO_MEMORY = "there is not enough memory"
NO_TEMPORARY = "No usable temporary directory found in"  # tempfile's words; torch asks for one as it is imported
_SIGNS = ("not enough memory", "can't allocate memory", "cannot allocate memory", "out of memory")
ONE_SAMPLE = "Expected more than 1 value per channel when training"  # torch's word in batch norm
WAY_OUT = (
    "Batch norm cannot train on a batch of one sample; the last batch of an epoch may have one. "
    "Choose drop_last=true, another batch_size, or a model with group norm."
)
_LIBRARIES = ("site-packages", "dist-packages")
_STANDARD = Path(sysconfig.get_path("stdlib"))


def exit_code_of(error: BaseException) -> int | None:
    """The exit status of an error of ours, or of a class derived from one; None for any other."""
    for cls in type(error).__mro__:
        if cls.__module__.partition(".")[0] == _OURS:
            code = getattr(error if cls is type(error) else cls, "exit_code", None)
            return code if type(code) is int and 0 < code < 256 else None
    return None


def lack_of(error: BaseException) -> MachineError | StorageError | None:
    """Returns an error that names the resource which this machine has too little of, if the error is about one."""
    text = words_of(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE) or (isinstance(error, RuntimeError) and "Too many open files" in text):
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return MachineError(f"too many open files: a process may have {allowed} (ulimit -n); raise that ({text})")
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and "can't start new thread" in text):
        return MachineError(f"this system starts no more processes or threads; raise the limit (ulimit -u) ({text})")
    if isinstance(error, OSError) and number in NUMBERS:
        file = error.filename2 or error.filename
        why = why_unwritten(error)
        return StorageError(f"cannot write {visible(str(file))}: {why}" if file else f"a file cannot be written: {why}")
    if isinstance(error, FileNotFoundError) and NO_TEMPORARY in text:
        return StorageError(f"{text.partition('] ')[2]}. Set TMPDIR to a folder that can be written")
    if says_unwritten(text):
        return StorageError(f"a file cannot be written: {text}")
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return MachineError(f"{NO_MEMORY}{f': {text}' if text else ''}")
    if isinstance(error, RuntimeError) and any(sign in text.lower() for sign in _SIGNS):
        return MachineError(f"{NO_MEMORY}: {text}")
    return None


def fills_gpu(error: RuntimeError) -> bool:
    """Returns whether `error`, of torch or of a library of CUDA's, says that a GPU has no memory left."""
    return exit_code_of(error) is None and says_full(_message(error))


def lack_of_gpu(error: RuntimeError, planned: Mapping[str, int]) -> MachineError:
    """`planned`: bytes by kind that the plan says a worker holds."""
    held = {kind: size for kind, size in planned.items() if size and not kind.startswith("host_")}
    largest = sorted(held, key=lambda kind: -held[kind])
    by_kind = ", ".join(f"{kind} {human_bytes(held[kind])}" for kind in largest)
    return MachineError(
        f"{NO_MEMORY} on the GPU: {words_of(error).rstrip('.')}. By the plan a worker holds "
        f"{human_bytes(sum(held.values()))}: {by_kind}. Choose a smaller batch_size or accumulate=2; "
        "paceline plan --fit says what fits."
    )


def misnamed(error: BaseException) -> ConfigError | None:
    """Returns the refusal of a typed name that the system takes for no file's; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
        return None
    name = visible(shortened(str(error.filename2 or error.filename)))
    return ConfigError(f"{name}: cannot be the name of a file ({error.strerror}). Choose another one.")


def forbidden(error: BaseException) -> MachineError | None:
    """Returns the refusal of a file or folder that this user may not open; None for any other error, and for one that
    a user's own code raised.
    """
    if not isinstance(error, PermissionError) or error.filename is None or place_in(error, _is_users):
        return None
    name = visible(shortened(str(error.filename2 or error.filename)))
    return MachineError(f"{name}: cannot be opened ({error.strerror}). Choose another folder, or change its mode.")


def ending_of(error: Exception) -> tuple[int, str, Exception] | None:
    """Returns the exit status of a command, its last words and the error of ours that they are of; None for a mistake
    in the code.
    """
    if exit_code_of(error) is None:
        error = misnamed(error) or forbidden(error) or lack_of(error) or error
    code = exit_code_of(error)
    return None if code is None else (code, _sentence(shortened(str(error))), error)


def _sentence(message: str) -> str:
    """The message without blank lines. One with an excerpt in it (indented, with a mark below) becomes one line."""
    lines = [line for line in message.splitlines() if any(map(str.isalnum, line))]
    if any(line[0].isspace() for line in lines[1:]):
        return " ".join(" ".join(lines).split())
    return "\n".join(lines) or "it failed, and does not say why"


def how_it_ended(error: str, message: str) -> str:
    """Describes a worker that failed, given its words (crew.Ended): only characters that a terminal can show."""
    return visible(message) if error in OWN_WORDS else f"failed: {visible(message)}"


def words_of(error: BaseException) -> str:
    """Returns the error's message in one line that a terminal can show, the middle left out where it is long."""
    return visible(" ".join(shortened(_message(error)).split()))


def traceback_of(error: BaseException) -> str:
    """Returns the whole traceback, with the secrets of the configuration hidden."""
    return hide_known("".join(traceback.format_exception(error)).rstrip())


def first_line_of(error: BaseException) -> str:
    """The first line of its message, or its type where it has none."""
    lines = shortened(_message(error)).strip().splitlines()
    return visible(lines[0] if lines else type(error).__name__)


def _message(error: BaseException) -> str:
    try:
        text = hide_known(str(error))
    except Exception:
        return "(its message cannot be shown)"
    if isinstance(error, IndexError) and (found := outside(error)):
        return found
    return f"{text}. {WAY_OUT}" if text.startswith(ONE_SAMPLE) else text


def outside(error: BaseException) -> str:
    """Returns the ids or labels that a model has no row or output for; "" of any other error."""
    return ids_outside(error) or labels_outside(error)


def labels_outside(error: BaseException) -> str:
    """Returns the labels and the number of outputs; "" of an error that no cross-entropy raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in (each for each in frames if each.f_code.co_name in ("cross_entropy", "nll_loss")):
        with suppress(Exception):  # another function, or of other arguments
            outputs, targets, ignored = (frame.f_locals[name] for name in ("input", "target", "ignore_index"))
            labels, classes = targets[targets != ignored], outputs.shape[1 if outputs.ndim > 1 else 0]
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= classes:
                return (
                    f"the labels are from {low} to {high}, and the model has {classes} outputs, for labels from 0 to "
                    f"{classes - 1}. Choose a model with more outputs, or data with other labels"
                )
    return ""


def ids_outside(error: BaseException) -> str:
    """Returns the largest id and the embedding that has no row for it; "" of an error that no embedding raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    at = next((i for i, each in enumerate(frames) if each.f_code.co_name in ("embedding", "embedding_bag")), 0)
    with suppress(Exception):  # another function, or of other arguments
        ids, weight = (frames[at].f_locals[name] for name in ("input", "weight"))
        low, high, rows = int(ids.min()), int(ids.max()), len(weight)
        if low >= 0 and high < rows:
            return ""
        callers = [each.f_locals for each in frames[:at] if each.f_code.co_name == "forward"]
        names = [name for each in callers for name, value in each.items() if value is ids]
        owners = [each["self"].named_parameters() for each in callers if hasattr(each.get("self"), "named_parameters")]
        owned = [name for each in owners for name, value in each if value is weight]
        return (
            f"the ids in {names[0] if names else 'the input'} are from {low} to {high}, and the embedding "
            f"{owned[0] if owned else 'weight'} has {rows} rows, for ids from 0 to {rows - 1}. Choose a larger "
            "embedding, or data with smaller ids"
        )
    return ""


def shortened(text: str) -> str:
    """Returns the beginning and the end of a long text, and how much lies between."""
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    return f"{text[:_HEAD]} [... {left_out:,} characters left out ...] {text[_HEAD - LONGEST :]}"


def speaks_for_itself(error: BaseException) -> bool:
    """Returns whether it is an error of ours, or about a resource that the machine lacks. No place is named for
    these.
    """
    return exit_code_of(error) is not None or lack_of(error) is not None


def named(error: BaseException) -> str:
    """Returns the error's type and message, and where it arose unless it is an error of ours that no user code raised.

    A refusal's message begins with the key that it is about, and needs no type.
    """
    kind, text, place = visible(type(error).__name__), words_of(error), place_of(error)
    said = f"{kind}: {text}" if text else kind
    if text and exit_code_of(error) == ConfigError.exit_code:
        said = text
    return f"{said}, in {place}" if place and place not in said else said


@contextmanager
def without_leaving() -> Iterator[None]:
    """Turns `sys.exit` in a class of the user's into an error, which ends one trial of a sweep and not all of them."""
    try:
        yield
    except SystemExit as error:
        if type(error) is not SystemExit:  # of SIGTERM
            raise
        raise WorkerFailedError(f"a class of yours left before the end: {named(error)}", 4, []) from error


def place_of(error: BaseException) -> str:
    """The last of the user's own lines, of the error or of what it was raised from.

    Where there is none, the last of our lines, of an error that is not ours: it is our mistake.
    """
    users = place_in(error, _is_users)
    return users if users or exit_code_of(error) is not None else place_in(error, _is_ours)


def place_in(error: BaseException, is_theirs: Callable[[FrameType], bool]) -> str:
    """`mine.wide.Wide.forward (mine/wide.py, line 14)`: the last such line; "" where there is none."""
    cause: BaseException | None = error
    seen: set[int] = set()  # a chain may lead back to where it began
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = [(frame, line) for frame, line in traceback.walk_tb(cause.__traceback__) if is_theirs(frame)]
        if frames:
            frame, line = frames[-1]
            code = frame.f_code
            file = shortest(code.co_filename)
            return visible(f"{frame.f_globals.get('__name__', '')}.{code.co_qualname} ({file}, line {line})")
        cause = cause.__cause__
    return ""


def shortest(file: str) -> Path:
    """Relative to here, when it lies below."""
    path = Path(file)
    with suppress(OSError):  # there may be no here any more
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return path


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS


def _is_users(frame: FrameType) -> bool:
    file = Path(frame.f_code.co_filename)
    in_library = file.is_relative_to(_STANDARD) or any(part in _LIBRARIES for part in file.parts)
    return not (_is_ours(frame) or in_library or file.name.startswith("<"))
