"""`paceline plan`: what would run, and what it would cost."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..conf.counted import counted
from ..conf.errors import ConfigError
from .choices import group_of
from .compare import check_file
from .cost_numbers import TOKENS
from .fit import fit_for_people, raw_fit
from .mesh import drawn_mesh, is_shown, raw_mesh
from .options import AllowModule, Config, ConfigDir, Overrides, with_config
from .output import aligned, note, note_all, results_alone, shortest, show, show_json
from .step_time import predicted
from .timetable import drawn, title_of

if TYPE_CHECKING:
    from ..engine.api.preparing import Prepared
    from ..engine.config.experiment import Experiment
    from ..engine.planning.planned import PartPlan, Plan
    from ..strategies.core.cost import Traffic
    from ..strategies.core.mesh import Mesh
    from ..tasks.first_rows import FirstRows

Format = Literal["table", "json", "yaml"]

# -- options

Fit = Annotated[
    bool,
    typer.Option(
        "--fit", help="The largest GPT, the largest batch and the strategies that fit into the hardware's memory."
    ),
]
ShowData = Annotated[bool, typer.Option("--show-data", help="Read the data and show the first rows.")]
Tokens = Annotated[
    str | None,
    typer.Option(metavar="N", help="How long so many tokens take, and what they cost: 20e9 or 20B; for accelerators."),
]
Svg = Annotated[Path | None, typer.Option(help="A pipeline's schedule as a picture: workers down, time across.")]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A page of pictures: memory over a step, where it goes, the schedule, a roofline.",
        show_default=False,
    ),
]


@results_alone()
def plan(
    overrides: Overrides = None,
    config: Config = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    format: Annotated[Format, typer.Option(help="json and yaml hold raw values: bytes, and bytes a step.")] = "table",
    fit: Fit = False,
    show_data: ShowData = False,
    tokens: Tokens = None,
    svg: Svg = None,
    html: Html = None,
) -> None:
    """Show what would run; nothing is trained.

    The configuration, which worker holds what, the predicted bytes and memory, and a pipeline's schedule.

    \b
    paceline plan                                            the defaults
    paceline plan strategy=pipeline hardware.workers=4       who holds which layers
    paceline plan strategy=pipeline strategy.schedule=1f1b --svg 1f1b.svg
    paceline plan sync=asp --format json | jq .bytes_per_step
    paceline plan hardware=a100_8 model=gpt_1b data=text strategy=zero precision=bf16 --tokens 20e9
    paceline plan data=table data.path=prices.csv --show-data   the first rows, as the model gets them
    paceline plan --fit hardware=h200 model=gpt_1b data=text
    paceline plan --config runs/NAME/config.yaml hardware.workers=8   a run, on more workers

    The same checks, for a script: paceline train ... --dry-run
    """
    from .. import engine

    check_file("--svg", svg)
    check_file("--html", html)
    read = TOKENS.read(tokens)
    chosen, blamed = with_config(config, overrides or [], config_dir)
    if fit:
        for option, file in (("--svg", svg), ("--html", html)):
            if file is not None:
                raise ConfigError(f"{option}: pictures one plan, and --fit makes many; leave one of them out")
        if tokens is not None:
            raise ConfigError("--tokens: is of one plan, and --fit makes many; leave one of them out")
        names = [choice.name for choice in group_of("strategy", config_dir)]
        if show_data:
            raise ConfigError("--show-data: is of one plan, and --fit makes many; leave one of them out")
        with blamed:
            found = engine.find_fit(chosen, names, config_dir, allow_module or [])
        text, raw = fit_for_people(found), partial(raw_fit, found)
    else:
        with blamed:
            prepared = engine.prepare(chosen, config_dir, allow_module or [])
            planned, timetable = prepared.plan(), prepared.timetable()
            rows = prepared.first_rows() if show_data else None
        table = None if timetable is None else timetable.as_dict()
        step, raw_step = predicted(prepared, planned, None if read is None else read.value)
        text = _for_people(planned, table, step, rows)
        beside = raw_step | ({} if rows is None else {"first_rows": rows.plain()})

        def raw() -> dict[str, Any]:  # with the mesh of each rank, which is long where there are many
            return raw_plan(planned, table) | beside

        note_all(planned.notes)
        if svg is not None:
            _picture(planned, table, svg)
        if html is not None:
            _page(prepared, planned, table, html)
    match format:
        case "table":
            show(text)
        case "json":
            show_json(raw())
        case "yaml":
            import yaml

            show(yaml.safe_dump(raw(), sort_keys=False))


def _picture(plan: "Plan", timetable: dict[str, Any] | None, file: Path) -> None:
    from ..tracking.drawn.schedule import as_svg
    from ..tracking.run_directory import write_atomically

    if timetable is None:
        name = plan.experiment.strategy.name
        raise ConfigError(f"--svg: pictures a schedule, and strategy={name} has none; strategy=pipeline has one")
    write_atomically(file, as_svg(title_of(_schedule_of(plan), timetable), timetable))
    note(f"picture: {shortest(file)}")


def _page(prepared: "Prepared", plan: "Plan", timetable: dict[str, Any] | None, file: Path) -> None:
    from ..tracking.run_directory import write_atomically
    from .plan_pictures import as_page, pictures

    write_atomically(file, as_page(_title(plan), pictures(prepared, plan, timetable)))
    note(f"pictures: {shortest(file)}")


def _schedule_of(plan: "Plan") -> str:
    from ..engine.predict.timetable import schedule_of

    return schedule_of(plan.experiment)


def raw_checked(prepared: "Prepared", plan: "Plan") -> dict[str, Any]:
    """Returns the output of `paceline plan --format json`."""
    timetable = prepared.timetable()
    return raw_plan(plan, None if timetable is None else timetable.as_dict()) | predicted(prepared, plan, None)[1]


def raw_plan(plan: "Plan", timetable: dict[str, Any] | None) -> dict[str, Any]:
    """Everything, in plain values: bytes, bytes a step, entries of parameters."""
    from ..engine.planning.process_memory import process_memory
    from ..tracking.redact import redact

    return {
        **plan.as_dict(),
        "process_memory": process_memory(plan),
        "steps_per_epoch": plan.steps_per_epoch,
        "threads": plan.threads,
        "who": [
            {
                "role": role,
                "stage": i,
                "ranks": _ranks(plan, role, i),
                "layers": list(part.layers),
                "parameters": part.parameters,
                "bytes_per_step": _plain(part.worker if role == "worker" else part.server),
                "memory": part.memory if role == "worker" else part.server_memory,
            }
            for role, i, part in _holders(plan, plan.parts)
        ],
        "mesh_ranks": raw_mesh(plan),
        "config": redact(plan.experiment.model_dump()),
        **({} if timetable is None else {"schedule": timetable}),
    }


def _plain(traffic: "Traffic | None") -> dict[str, float] | None:
    return None if traffic is None else dict(traffic)


def _holders(plan: "Plan", parts: list["PartPlan"]) -> list[tuple[str, int, "PartPlan"]]:
    """Each part as its workers hold it, then as its servers do."""
    workers = [("worker", i, part) for i, part in enumerate(parts)]
    servers = [("server", i, part) for i, part in enumerate(parts)] if plan.layout.servers else []
    return workers + servers


def _ranks(plan: "Plan", role: str, part: int) -> list[int]:
    layout = plan.layout
    first, end = (0, layout.workers) if role == "worker" else (layout.workers, layout.world_size)
    return list(range(first + part, end, layout.parts))


# -- for people


def _for_people(plan: "Plan", timetable: dict[str, Any] | None, step: list[str], rows: "FirstRows | None") -> str:
    from ..tracking.compare import human_bytes

    shared = " (its share of what servers send included)" if plan.layout.servers else ""
    shared += ", on average over the run" if len(plan.phases) > 1 else ""
    paragraphs = [
        f"{_title(plan)}\ndata: {plan.contents.in_words()}",
        *([] if rows is None else ["\n".join(_first(rows))]),
        "\n".join(_configuration(plan.experiment)),
        "\n".join(_who(plan)),
        *(["\n".join(drawn_mesh(plan))] if is_shown(plan) else []),
        f"predicted: {_sent(plan)} sent for each worker and step{shared}{_before(plan)}, "
        f"{human_bytes(plan.largest())} held by the largest worker, the process itself aside",
        *([told] if (told := _accumulated(plan)) else []),
        *([f"rate: {_rate(plan)}"] if plan.rate else []),
        *(f"{key}: {each.in_words()}" for key, each in plan.stated.items()),
        *(["\n".join(step)] if step else []),
        *(["\n".join(drawn(_schedule_of(plan), timetable))] if timetable is not None else []),
        *(["\n".join(plan.decided)] if plan.decided else []),
    ]
    return "\n\n".join(paragraphs)


def _first(rows: "FirstRows") -> list[str]:
    shown = rows.table()
    title = f"first {len(shown) - 1:,} of {rows.of:,} training samples, as the model gets them:"
    return [title, *rows.described(), *aligned(shown, numbers_from=len(shown[0]))]


def _sent(plan: "Plan") -> str:
    from ..tracking.compare import human_bytes

    sent = plan.bytes_per_step()
    return human_bytes(sent) if sent is not None else f"bytes that cannot be stated beforehand ({plan.varies})"


def _accumulated(plan: "Plan") -> str:
    from ..engine.features.accumulating import in_words

    return in_words(plan.experiment)


def _rate(plan: "Plan") -> str:
    from ..engine.features.rates import in_words

    return in_words(plan.rate)


def _before(plan: "Plan") -> str:
    """Bytes before compression, where there is any."""
    from ..tracking.compare import human_bytes

    plain = plan.uncompressed_bytes_per_step()
    return "" if plain is None else f" where compress=none sends {human_bytes(plain)}"


def _title(plan: "Plan") -> str:
    experiment, layout = plan.experiment, plan.layout
    servers = f", {counted(layout.servers * layout.parts, 'server')}" if layout.servers else ""
    steps = "as many steps as the data give"
    if plan.steps is not None:
        steps = counted(plan.steps, "step")
        if plan.steps_per_epoch is not None:
            steps += f" of {plan.steps_per_epoch:,} an epoch"
    return (
        f"{experiment.model.name} on {experiment.data.name}, {experiment.strategy.name} + {experiment.sync.name}: "
        f"{counted(layout.workers, 'worker')} ({counted(layout.replicas, 'replica')} of {_laid_over(layout.mesh)})"
        f"{servers}, {plan.device.type}, "
        f"{counted(plan.threads, 'thread')} each, {steps}"
    )


def _laid_over(mesh: "Mesh") -> str:
    words = {"stage": "stage", "tensor": "tensor part", "domain": "domain part"}
    axes = [counted(size, words[axis]) for axis, size in mesh.axes.items() if axis in words]
    return " x ".join(axes) or "1 stage"


def _configuration(experiment: "Experiment") -> list[str]:
    """One line a group, as it would be written on the command line."""
    from ..conf.groups import BY_NAME
    from ..tracking.redact import redact

    config = redact(experiment.model_dump())
    config["hardware"].pop("calibration", None)  # thousands of numbers, which come with the choice's name
    lines = [[f"{group}={config[group]['name']}", _overrides(config[group]["knobs"], f"{group}.")] for group in BY_NAME]
    sections = [key for key, value in config.items() if key not in BY_NAME and isinstance(value, dict)]
    lines += [[section, _overrides(config[section], f"{section}.")] for section in sections]
    rest = {key: value for key, value in config.items() if key not in (*BY_NAME, *sections)}
    return [*aligned([*lines, ["run", _overrides(rest, "")]], numbers_from=2)]


def _overrides(knobs: dict[str, Any], prefix: str) -> str:
    from ..conf.grammar import as_override

    return " ".join(f"{prefix}{key}={as_override(value)}" for key, value in knobs.items())


def _who(plan: "Plan") -> list[str]:
    from ..tracking.compare import human_bytes

    kinds = list(plan.parts[0].memory)
    table = [["who", "ranks", "holds", "entries", "sent/step", *kinds]]
    for since, role, i, part in (
        (phase.first, *holder) for phase in plan.phases for holder in _holders(plan, phase.parts)
    ):
        of = ", ".join(f"{axis} {at}" for axis, at in plan.layout.mesh.position(i).items() if axis != "replica")
        where = f"{role} of {of}" if of else role
        if len(plan.phases) > 1:
            where += ", later" if since is None else f", from step {since + 1:,}"
        sent = part.worker if role == "worker" else part.server
        held = part.memory if role == "worker" else part.server_memory
        memory = [human_bytes(held[kind]) if kind in held else "-" for kind in kinds]
        table.append(
            [
                f"each {where}",
                _abridged([str(rank) for rank in _ranks(plan, role, i)]),
                _abridged(part.layers) if plan.layout.parts > 1 else "the whole model",
                f"{part.parameters:,}",
                human_bytes(sum(sent.values())) if sent is not None else "varies",
                *memory,
            ]
        )
    return aligned(table, numbers_from=3)


def _abridged(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 6 else [*names[:3], "...", names[-1]])
