"""The `paceline` command: its sub-commands, and how it ends when something is wrong."""

if __name__ == "__main__":  # python -m, which is not entry.py
    from .importing import begin

    begin()

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from ..compat.typer import ClickException, NoSuchOption
from .advise import advise
from .calibrate import calibrate
from .commands import Commands
from .compare import compare
from .completion import ASKS, InstallCompletion, ShowCompletion, complete_in_shells
from .cost import PASSED, cost
from .diff import diff
from .doctor import doctor
from .error_document import document
from .explain import explain
from .export import export
from .import_configuration import import_configuration
from .importing import INTERRUPTED, STOPPED_BY_CTRL_C, wants_json
from .init import init
from .jobs import cancel, jobs, logs
from .lab import lab
from .launch import PASSED_ON, launch
from .learn import learn
from .list import list_choices
from .options import Help
from .output import note, nothing_shown, open_closed_streams, show, show_error
from .plan import plan
from .report import report
from .show import show_one
from .stored import list_stored, prune, rm
from .sweep import sweep
from .train import train
from .upload import FORMER_NAME, upload
from .verify import verify
from .watch import watch

BUG, MACHINE, WORKER_FAILED = 1, 3, 4
TERMINATED = 128 + signal.SIGTERM

complete_in_shells()
app = typer.Typer(
    name="paceline",
    cls=Commands,
    no_args_is_help=True,
    add_help_option=False,  # see Help
    add_completion=False,  # likewise
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command()(plan)
app.command()(advise)
app.command(context_settings=PASSED, no_args_is_help=True)(cost)
app.command()(verify)
app.command()(watch)
app.command(context_settings=PASSED_ON)(launch)
app.command()(init)
app.command("import")(import_configuration)
app.command()(sweep)
app.command()(compare)
app.command()(explain)
app.command()(report)
app.command()(lab)
app.command("show")(show_one)
app.command()(diff)
app.command()(export)
app.command()(jobs)
app.command()(logs)
app.command()(cancel)
app.command("ls")(list_stored)
app.command()(rm)
app.command()(prune)
app.command()(upload)
app.command(FORMER_NAME, hidden=True)(upload)
app.command("list")(list_choices)
app.command()(learn)
app.command()(doctor)
app.command()(calibrate)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        show(f"paceline {version('paceline')}")
        raise typer.Exit


@app.callback()
def paceline(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    install_completion: InstallCompletion = False,
    show_completion: ShowCompletion = False,
    help: Help = False,
) -> None:
    """Compare ways of training one model on many workers, from one line.

    \b
    paceline list                                the strategies, sync modes, models, data sets, ...
    paceline plan strategy=pipeline              what would run, and what it would cost
    paceline advise hardware=a100_8              which way is best, and what it costs
    paceline cost                                days, dollars and kilowatt hours of training, before there is any
    paceline train sync=asp hardware.workers=4   train
    paceline verify model=cnn                    does it train the same in every way?
    paceline watch RUN                           how a run gets on, from another terminal
    paceline compare                             the runs side by side
    paceline report --serve                      the same in a browser, as runs go on
    paceline lab                                 choose two, and run both side by side in a browser
    paceline diff RUN1 RUN2                      what differs between two
    paceline export RUN FOLDER                   its model as a folder for a model hub
    paceline ls                                  the runs on disk; rm and prune remove them
    paceline jobs                                the runs that a scheduler has; logs RUN, cancel RUN
    paceline explain sync=ssp                    what a choice does, and who sends what to whom
    paceline upload                              send runs that were recorded offline to W&B
    paceline init my-project                     a folder with a model and data of your own to start from
    paceline import deepspeed FILE               a configuration of another tool as a line of paceline
    paceline learn                               a course: chapters of text and commands
    paceline doctor                              what works on this machine
    paceline calibrate                           how fast this machine is, for plan to predict steps on it
    """


def main() -> None:
    """Run the command that sys.argv names. Ends the process with an exit status of docs/running.md."""
    try:
        _run()
    except KeyboardInterrupt:  # before a command has begun, or while its error is explained
        _leave(_say(INTERRUPTED, STOPPED_BY_CTRL_C))


def _run() -> NoReturn:
    open_closed_streams()
    nothing_shown()
    # torchrun's processes leave SIGTERM as it is until they have met
    if threading.current_thread() is threading.main_thread() and "RANK" not in os.environ:
        signal.signal(signal.SIGTERM, _terminate)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(signal.SIGHUP, _hanging_up([stream for stream in (1, 2) if os.isatty(stream)]))
    try:
        Path.cwd()
    except OSError:
        note("the current directory is gone or cannot be read; go to another one first")
        _leave(MACHINE)
    try:
        status = app(prog_name="paceline", standalone_mode=False)  # or it prints what it was given as it was given
    except ClickException as error:
        _leave(_explain_usage(error))
    except Exception as error:
        _leave(_status_of_stop(error) or _explain(error))
    except Terminated as end:
        _leave(end.code if isinstance(end.code, int) else TERMINATED)
    except SystemExit as end:  # Typer's answer to a shell, or a class of the user's on its way to a run
        if ASKS in os.environ:
            _leave(end.code if isinstance(end.code, int) else 0)
        from ..engine.base.failures import named

        note(f"a class of yours left before the end: {named(end)}")
        _leave(WORKER_FAILED)
    if status == INTERRUPTED and sys.argv[1:2] != ["watch"]:  # Typer's word for a KeyboardInterrupt; watch says its own
        _say(INTERRUPTED, STOPPED_BY_CTRL_C)
    _leave(status if isinstance(status, int) else 0)


class Terminated(SystemExit):
    """SIGTERM came."""


def _status_of_stop(error: BaseException | None) -> int:
    """The exit status where this came up while a signal was on its way: a library stumbled over it. Else 0."""
    seen: set[int] = set()  # a chain may lead back to where it began
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__ or error.__context__
        if isinstance(error, Terminated):
            return TERMINATED
        if isinstance(error, KeyboardInterrupt):
            return _say(INTERRUPTED, STOPPED_BY_CTRL_C)
    return 0


def _say(code: int, message: str, error: BaseException | None = None) -> int:
    """Say why the command ends with this status, which is returned: a line, and JSON where that was asked for."""
    if code != INTERRUPTED:  # then nothing is imported
        from ..tracking.redact import hide_known, know_typed

        know_typed(sys.argv[1:])
        message = hide_known(message)
    note(message)
    if wants_json(sys.argv[1:]):
        show_error(document(code, message, error))
    return code


def _explain_usage(error: ClickException) -> int:
    """Say in one line what of the command line cannot be; returns the exit status."""
    said, context = error.format_message().rstrip(), getattr(error, "ctx", None)
    if "\n" in said:  # the help, of a command that does nothing by itself
        note(said)
        return error.exit_code
    command = " ".join(["paceline", *sys.argv[1:2]]) if context is None else context.command_path
    said = said.replace(": Value error, ", ": ").removesuffix(".")  # pydantic's words, of one choice out of several
    if isinstance(error, NoSuchOption):
        metavars = [] if context is None else [getattr(each, "metavar", None) or "" for each in context.command.params]
        key = _key_of(error.option_name) if any("OVERRIDES" in each for each in metavars) else ""
        having = _commands_with(error.option_name, context)
        if key and (not having or " it is " in key):
            return _say(error.exit_code, key, error)
        near = " or ".join(sorted(error.possibilities or []))
        hint = f"; {having}" if having else f"; did you mean {near}?" if near else ""
        said = error.message + hint
    said = said.replace(". Did you mean", "; did you mean")
    return _say(error.exit_code, f"{command}: {said[:1].lower()}{said[1:]} ({command} -h shows what there is)", error)


def _commands_with(option: str, context: typer.Context | None) -> str:
    """Returns `paceline sweep has it`, of other commands; "" where none has the option."""
    is_short = not option.startswith("--")
    every = {} if context is None or is_short else getattr(context.find_root().command, "commands", {})
    names = [name for name, each in every.items() if not each.hidden and any(option in its.opts for its in each.params)]
    if not names:
        return ""
    return f"paceline {', '.join(names[:-1])} and {names[-1]} have it" if names[1:] else f"paceline {names[0]} has it"


def _key_of(option: str) -> str:
    """`--workers 4`: the configuration's keys are given without dashes; "" where it has no such key."""
    from ..engine.config.hints import elsewhere

    after = dropwhile(lambda argument: argument.partition("=")[0] != option, sys.argv)
    _, equals, value = next(after, "").partition("=")
    value = value if equals else next((text for text in after if not text.startswith("-")), "")
    there = elsewhere(option.lstrip("-"), value) if option.startswith("--") else ""
    return f"{option}: is no option; the configuration is given without dashes, as KEY=VALUE: {there}" if there else ""


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM, except while the engine has workers, which save first."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))  # should the first get lost in a destructor
    training = " while no worker was training; what is in the run directory stays" if "train" in sys.argv[1:2] else ""
    try:
        os.write(2, f"stopped by SIGTERM{training}\n".encode())  # print() may be what was interrupted
    except OSError:
        pass
    raise Terminated(TERMINATED)


def _hanging_up(terminals: list[int]) -> Callable[[int, FrameType | None], None]:
    """Handles SIGHUP as SIGTERM. `terminals`: descriptors of what has gone, where printing would fail."""

    def hang_up(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a shell sends it besides
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for terminal in terminals:
            os.dup2(nowhere, terminal)
        signal.raise_signal(signal.SIGTERM)

    return hang_up


def _explain(error: Exception) -> int:
    """Say what went wrong, the last line in one sentence; returns the exit status."""
    from ..engine.base.failures import ending_of, named, shortened, traceback_of

    if (ending := ending_of(error)) is not None:
        code, words, error = ending
        for line in getattr(error, "details", []):
            note(shortened(line))
        return _say(code, words, error)
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("paceline"):
        package = error.name.partition(".")[0]
        return _say(MACHINE, f"the package {package} is not installed; what works here: paceline doctor")
    note(shortened(traceback_of(error)))
    return _say(BUG, f"this is a mistake in paceline, or in a class of yours: {named(error)}")


def _leave(status: int) -> NoReturn:
    """Ends the process with this status. Under torchrun it ends at once: destructors of process groups may wait for
    peers that have gone.
    """
    if status and "RANK" in os.environ and "torch" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    gc.freeze()  # or Python looks for cycles in all that was imported, twice
    if threading.current_thread() is threading.main_thread():
        # Python's own way out has no place for an exception: it would print a traceback
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: os._exit(128 + number))
    sys.exit(status)


if __name__ == "__main__":
    from ..compat.leaving import leave
    from .importing import end

    end()
    try:
        main()
    except SystemExit as left:
        # after a KeyboardInterrupt within exec(), as in a dataclass, python -m would end by SIGINT
        if left.code == INTERRUPTED:
            leave(INTERRUPTED)
        raise
