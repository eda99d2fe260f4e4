"""Completes words for TAB: groups, their choices, keys of the chosen ones, runs. Reads file names and YAML, nothing
heavier.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.completion import completion_init, install_callback, show_callback

from ..compat.typer import set_bash_script
from ..engine import ROOT
from .chapters import chapters
from .choices import defaults, groups, primary

Candidates = list[tuple[str, str]]  # what to insert, and what it is (shown by zsh and fish)
ASKS = "_PACELINE_COMPLETE"  # a variable that Typer's scripts set: a shell asks, and Typer answers and calls sys.exit

# Typer's own script takes bash's words, which end at `=` and `@`, so that `model=c` would be completed as `c`. This one
# parts the line at blanks only, and takes off each candidate what stands before the piece that readline replaces ($2).
BASH = """
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} candidate
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:blank:]] ]] && words+=("")
    local last=$((${#words[@]} - 1))
    local before=${words[last]%%"$2"}
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ -n $candidate ]] && COMPREPLY+=("${candidate#"$before"}")
    done < <(env COMP_WORDS="${words[*]}" COMP_CWORD=$last %(autocomplete_var)s=complete_bash "$1" 2>/dev/null)
    [[ ${COMPREPLY[0]-} == *[=.] ]] && compopt -o nospace 2>/dev/null
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""


def _install(ctx: typer.Context, param: typer.CallbackParam, value: bool) -> None:
    with _leaving_as_a_command_does():
        install_callback(ctx, param, value)


def _show(ctx: typer.Context, param: typer.CallbackParam, value: bool) -> None:
    with _leaving_as_a_command_does():
        show_callback(ctx, param, value)


@contextmanager
def _leaving_as_a_command_does() -> Iterator[None]:
    """Typer calls sys.exit here, which our commands take for a user's class that left."""
    try:
        yield
    except SystemExit as end:
        raise typer.Exit(end.code if isinstance(end.code, int) else 0) from None


InstallCompletion = Annotated[
    bool, typer.Option("--install-completion", callback=_install, help="Install completion for the current shell.")
]
ShowCompletion = Annotated[
    bool, typer.Option("--show-completion", callback=_show, help="Print completion for the current shell.")
]


def complete_in_shells() -> None:
    """Answer the shells' questions, and give bash our script."""
    completion_init()
    set_bash_script(BASH)


def complete_override(ctx: typer.Context, incomplete: str) -> Candidates:
    """`strat` -> `strategy=`, `model=c` -> `model=cnn`, `optimizer.l` -> `optimizer.lr=`."""
    known = groups(_config_dir(ctx))
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [(f"{key}={choice.name}", choice.description) for choice in known.get(key, [])]
    keys = _with_marks(primary())
    if "." not in key:
        return [(f"{group}=", "") for group in known] + [(name, "") for name in keys if name[:-1] not in known]
    section, *deeper = key.split(".")[:-1]
    content: Any = primary().get(section, {})
    for choice in known.get(section, []):
        if choice.name == _chosen(ctx, section):
            content = choice.knobs()
    for name in deeper:
        content = content.get(name) if isinstance(content, Mapping) else None
    prefix = key.rpartition(".")[0]
    return [(f"{prefix}.{name}", "") for name in _with_marks(content)]


def complete_group(ctx: typer.Context, incomplete: str) -> Candidates:
    return [(group, "") for group in [*groups(_config_dir(ctx)), "pairs", "terms", "columns"]]


def complete_run(ctx: typer.Context, incomplete: str) -> Candidates:
    from ..tracking.run_directory import run_names

    return [(name, "") for name in _needing_no_quotes(run_names(ROOT))]


def complete_source(ctx: typer.Context, incomplete: str) -> Candidates:
    """A run or a sweep, and behind `SWEEP/` the sweep's runs."""
    from ..tracking.run_directory import run_names
    from ..tracking.sources import sweep_names

    sweep, slash, _ = incomplete.partition("/")
    sweeps = sweep_names(ROOT)
    if slash:
        names = _needing_no_quotes(run_names(ROOT / sweep)) if sweep in sweeps else []
        return [(f"{sweep}/{name}", "") for name in names]
    return complete_entry(ctx, incomplete)


def complete_entry(ctx: typer.Context, incomplete: str) -> Candidates:
    """A run or a sweep."""
    from ..tracking.sources import sweep_names

    return [*complete_run(ctx, incomplete), *((name, "sweep") for name in _needing_no_quotes(sweep_names(ROOT)))]


def complete_column(ctx: typer.Context, incomplete: str) -> Candidates:
    from ..tracking.columns import COLUMNS

    return [(column.short or column.key, column.title) for column in COLUMNS]


def complete_checkpoint(ctx: typer.Context, incomplete: str) -> Candidates:
    """A run, and once that is followed by `@` one of its checkpoints."""
    run, at, _ = incomplete.partition("@")
    if not at:
        return complete_run(ctx, incomplete)
    steps = sorted(path.name for path in (ROOT / run / "checkpoints").glob("step-*") if not path.suffix)
    return [(f"{run}@{step}", "") for step in steps]


def complete_chapter(ctx: typer.Context, incomplete: str) -> Candidates:
    return [(each.name, each.title) for each in chapters()]


def _needing_no_quotes(names: list[str]) -> list[str]:
    """Returns the names that a shell takes as they are. A renamed run may be called `$(rm -r .)`."""
    from ..tracking.run_directory import NAME

    return [name for name in names if NAME.fullmatch(name)]


def _config_dir(ctx: typer.Context) -> Path | None:
    given = ctx.params.get("config_dir")
    return Path(given) if given and Path(given).is_dir() else None


def _chosen(ctx: typer.Context, group: str) -> str | None:
    """The group's choice: the last one on the line, or the default."""
    chosen = defaults().get(group)
    for override in ctx.params.get("overrides") or []:
        key, equals, value = override.partition("=")
        if equals and key == group:
            chosen = value
    return chosen


def _with_marks(content: Any) -> list[str]:
    """Keys with what follows them: `.` for a section, `=` for a value."""
    if not isinstance(content, Mapping):
        return []
    return [f"{key}{'.' if isinstance(value, Mapping) else '='}" for key, value in content.items()]
