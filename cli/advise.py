"""`paceline advise`: which way is best here, and what does it cost."""

import gc
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..conf.errors import ConfigError
from .compare import check_file
from .options import AllowModule, Config, ConfigDir, Overrides, with_config
from .output import note, note_all, results_alone, shortest, show, show_json, terminal_width

if TYPE_CHECKING:
    from ..advise.answer import Answer
    from ..advise.question import Question

Format = Literal["table", "json", "csv", "markdown"]
Sort = Literal["time", "dollars", "memory", "bytes"]
MOST = 1000  # lines
INTERRUPTED = 130  # exit status

# -- options

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="model=NAME, and data=tokens for a GPT if no data are typed: llama_8b.",
        show_default=False,
    ),
]
HuggingFace = Annotated[
    Path | None,
    typer.Option(
        "--hf", metavar="PATH", help="The model of a Hugging Face config.json, or its folder.", show_default=False
    ),
]
Gpus = Annotated[
    str | None, typer.Option("--gpus", metavar="NxCARD", help="hardware= of N cards: 8xH100.", show_default=False)
]

Tokens = Annotated[str | None, typer.Option(metavar="N", help="Trained on in all: 20e9 or 20B.", show_default=False)]
Budget = Annotated[
    str | None, typer.Option(metavar="USD", help="At most, for all tokens: 5000USD.", show_default=False)
]
Deadline = Annotated[
    str | None, typer.Option(metavar="TIME", help="At most, for all tokens: 7d or 36h.", show_default=False)
]
Mtbf = Annotated[
    str | None,
    typer.Option(
        "--mtbf", metavar="TIME", help="Mean time between failures of one worker: 50000h.", show_default=False
    ),
]
Restart = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="With --mtbf: until a failed worker is back. Default: 60s.", show_default=False),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="With --mtbf: a second that a worker writes of a checkpoint. Default: 1G.",
        show_default=False,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(metavar="N", help="Samples of a step, of all replicas. Default: batch_size x workers."),
]
Explain = Annotated[
    int | None,
    typer.Option(metavar="N", help="Where the time of line N goes, and what would help most.", show_default=False),
]
Race = Annotated[
    list[str] | None,
    typer.Option(
        metavar="K",
        help="Train the first K for real until one wins; or those given, such as sync=asp. May be repeated.",
        show_default=False,
    ),
]
Target = Annotated[
    float | None, typer.Option(metavar="ACC", help="Of the race: the accuracy to reach.", show_default=False)
]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Of the race: its sweep's.", show_default=False)]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that opens offline.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="On a terminal, or with COLUMNS set: all lines, not 25 at most.")]
Export = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FORMAT=FILE",
        help="Write the recommended layout for torchtitan=run.toml, accelerate=run.yaml or deepspeed=run.json. "
        "May be repeated.",
        show_default=False,
    ),
]


@results_alone()
def advise(
    overrides: Overrides = None,
    config: Config = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    model: Model = None,
    hf: HuggingFace = None,
    gpus: Gpus = None,
    tokens: Tokens = None,
    budget: Budget = None,
    deadline: Deadline = None,
    mtbf: Mtbf = None,
    restart: Restart = None,
    storage: Storage = None,
    batch: Batch = None,
    sort: Annotated[
        Sort | None, typer.Option(help="By what. Default: time; bytes where times are not predicted.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", help="So many lines.")] = 10,
    explain: Explain = None,
    race: Race = None,
    target: Target = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Of the race: runs of each.")] = 3,
    name: Name = None,
    format: Annotated[
        Format, typer.Option(help="csv and markdown: the table alone; json: all, in raw values.")
    ] = "table",
    html: Html = None,
    export: Export = None,
    every: All = False,
) -> None:
    """Find the best configuration for this hardware, and its cost: nothing is trained, unless --race is given.

    Strategies, degrees, schedules, micro-batches, ZeRO stages, offload and recomputation are enumerated. Layouts
    that are refused or do not fit are left out and counted; the rest is ranked by prediction. The recommendation
    comes first. On a terminal, or with COLUMNS set, the answer has 25 lines at most: --all adds the rest of the
    table, a command for each line, and why not the others. Settings that you type, or that --config has, are kept.
    Ctrl-C ends the planning with what is known so far, and exit status 130.

    \b
    paceline advise --model llama_8b --gpus 64xH100
    paceline advise model=cnn data=fashion_mnist hardware.workers=2
    paceline advise model=gpt_1b data=text hardware=a100_8
    paceline advise model=gpt_1b data=text hardware=a100_8 hardware.hosts=4 --tokens 20e9 --budget 5000USD --deadline 7d
    paceline advise model=mlp hardware.workers=2 --race 4 --target 0.9
    paceline advise --model llama_8b --gpus 8xH100 --export torchtitan=run.toml
    """
    from .advise_asked import asked, failures_of
    from .advise_export import files_of

    check_file("--html", html)
    files = files_of(export or [], race is not None)
    if not 1 <= top <= MOST:
        raise ConfigError(f"--top {top}: must be at least 1 and at most {MOST}")
    if race is None and (target is not None or name is not None):
        raise ConfigError(f"{'--target' if target is not None else '--name'}: is of a race; give --race K, too")
    if race is not None and mtbf is not None:
        raise ConfigError("--mtbf: lowers predictions, and a race measures. Leave one of them out.")
    _import_all()
    failures, allowed = failures_of(mtbf, restart, storage), allow_module or []
    chosen, blamed = with_config(config, overrides or [], config_dir)
    with blamed:
        question = asked(chosen, model, hf, gpus, tokens, budget, deadline, batch, config_dir, allowed, failures)
        if race is None:
            _answer(question, sort, top, explain, format, html, files, every)
            return
        from .advise_race import race_of

        race_of(question, race, target, seeds, name, format)


def _import_all() -> None:
    """Imports what an answer needs. Collections during it, and of all that was imported, take a tenth of the time."""
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import_module("paceline.advise.answer")
    finally:
        gc.freeze()
        gc.enable()


def _answer(
    question: "Question",
    sort: Sort | None,
    top: int,
    explain: int | None,
    format: Format,
    html: Path | None,
    files: dict[Path, str],
    every: bool,
) -> None:
    from ..advise.answer import answer
    from .advise_export import write
    from .advise_progress import progress_line
    from .advise_view import nothing_fits

    with progress_line() as progress:
        found = answer(question, sort, top, progress=progress)
    if not found.rows:
        raise nothing_fits(found)
    write(found, files)
    if explain is not None:
        if not 1 <= explain <= len(found.rows):
            raise ConfigError(f"--explain {explain}: is the number of a line, from 1 to {len(found.rows)}")
        from .advise_explain import explained

        show(explained(found, explain))
        note_all(found.notes)
    else:
        _show(found, format, html, every)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _show(found: "Answer", format: Format, html: Path | None, every: bool) -> None:
    from .advise_view import for_people, in_short, raw, table_as

    match format:
        case "table":
            width = None if every else terminal_width()
            show(for_people(found) if width is None else in_short(found, width))
        case "json":
            show_json(raw(found))
        case "csv" | "markdown":
            show(table_as(found, format))
    if format != "table":
        note_all(found.notes)
    if html is not None:
        from ..tracking.run_directory import write_atomically
        from .advise_html import page

        write_atomically(html, page(found))
        note(f"page: {shortest(html)}")
