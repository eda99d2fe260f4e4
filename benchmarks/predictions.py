"""Steps as they are predicted from a calibration beside those of real training runs on the same machine.

None of these models, and none of their steps, is part of what the calibration measures: all rows are held out.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from textwrap import fill
from typing import Annotated, Any

import typer

from paceline import engine
from paceline.cost.predicted import NotPredicted
from paceline.engine.calibration.session import calibrate
from paceline.engine.calibration.write import write

from .measure import Outcome

DOCS = Path(__file__).parents[1] / "docs" / "predictions.md"
BEGIN, END = "<!-- calibrated predictions -->", "<!-- end of calibrated predictions -->"

SECONDS, LEAST, MOST = 1.5, 24, 400  # of training in a run, and its steps
QUIET = ("tracking=none", "evaluate.every=1000", "checkpoint.every=0", "measure.after=8")
MODELS = {
    "mlp": "model=mlp data=digits",
    "wide mlp": "model=mlp data=digits model.hidden=[1024,1024]",
    "alexnet": "model=alexnet data=noise",
    "cnn": "model=cnn data=noise",
    "resnet": "model=resnet data=noise",
    "vit": "model=vit data=noise",
    "unet": "model=unet data=disks data.side=64 data.samples=64",
    "gpt": "model=gpt data=text data.context=64 data.limit=2000",
}
CASES = (
    *(
        f"{model} | strategy=single hardware.workers=1 batch_size={size}"
        for model, size in (
            ("mlp", 32),
            ("mlp", 256),
            ("wide mlp", 64),
            ("alexnet", 32),
            ("cnn", 32),
            ("cnn", 128),
            ("resnet", 32),
            ("vit", 32),
            ("unet", 8),
            ("gpt", 8),
            ("gpt", 32),
        )
    ),
    *(
        f"{model} | sync=bsp hardware.workers={workers} batch_size={size}"
        for model, workers, size in (
            ("mlp", 2, 32),
            ("mlp", 4, 64),
            ("wide mlp", 2, 64),
            ("wide mlp", 3, 64),
            ("alexnet", 2, 16),
            ("cnn", 2, 32),
            ("cnn", 4, 32),
            ("resnet", 2, 16),
            ("vit", 2, 16),
            ("vit", 4, 16),
            ("unet", 2, 8),
            ("gpt", 2, 8),
            ("gpt", 4, 8),
            ("gpt", 3, 16),
        )
    ),
    "cnn | sync=bsp_naive hardware.workers=2",
    "cnn | sync=local_sgd hardware.workers=2",
    "wide mlp | sync=local_sgd sync.period=2 hardware.workers=4",
    "gpt | sync=diloco hardware.workers=2 batch_size=8",
    "wide mlp | sync=easgd hardware.workers=2",
    "cnn | sync=gossip hardware.workers=3",
    "wide mlp | sync=gossip hardware.workers=4",
    "cnn | sync=independent hardware.workers=2",
    "cnn | sync=parameter_server hardware.workers=2",
    "wide mlp | sync=parameter_server hardware.workers=1",
    "cnn | sync=asp hardware.workers=2",
    "cnn | sync=ssp hardware.workers=3",
    "wide mlp | compress=bf16 hardware.workers=2",
    "wide mlp | compress=topk hardware.workers=2",
    "gpt | compress=powersgd hardware.workers=2 batch_size=8",
    "wide mlp | collective=ring hardware.workers=2",
    "wide mlp | optimizer=adam hardware.workers=2",
    "gpt | strategy=pipeline hardware.workers=2 batch_size=16",
    "gpt | strategy=pipeline strategy.schedule=1f1b strategy.stages=4 hardware.workers=4 batch_size=16",
    "wide mlp | strategy=pipeline hardware.workers=2 batch_size=256",
    "gpt | strategy=tensor hardware.workers=2 batch_size=16",
    "gpt | strategy=tensor hardware.workers=4 batch_size=8",
    "wide mlp | strategy=tensor hardware.workers=2 batch_size=256",
    "gpt | strategy=hybrid hardware.workers=4 batch_size=16",
    "unet | strategy=domain hardware.workers=2 batch_size=8",
    "cnn | strategy=torch_ddp hardware.workers=2",
    "wide mlp | strategy=torch_ddp hardware.workers=2",
    "gpt | strategy=torch_ddp hardware.workers=4 batch_size=8",
    "resnet | strategy=torch_ddp hardware.workers=2 batch_size=16",
    "wide mlp | strategy=torch_zero_optimizer hardware.workers=2",
    "gpt | strategy=torch_zero_optimizer hardware.workers=2 batch_size=8",
    "cnn | aggregate=median hardware.workers=3",
    "wide mlp | aggregate=median hardware.workers=2",
    "cnn | attack=sign_flip hardware.workers=2",
    "cnn | stragglers=exponential hardware.workers=2",
)


@dataclass(frozen=True)
class PredictionRow:
    case: str
    predicted: float  # seconds of a step
    measured: float
    parts: dict[str, float]
    found: dict[str, float]

    @property
    def name(self) -> str:
        return self.case.replace(" | ", ": ")

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def rows(hardware: str, folder: Path, cases: Sequence[str] = CASES) -> Iterator[PredictionRow | str]:
    """`hardware`: a calibrated choice in `folder`. Of what is not predicted, the reason."""
    data = folder / "data" / "noise.yaml"
    data.parent.mkdir(exist_ok=True)
    data.write_text("# Images of noise\n_target_: benchmarks.noise.NoiseImages\n")
    allowed = ["benchmarks"]
    for case in cases:
        model, _, how = case.partition(" | ")
        overrides = [f"hardware={hardware}", *MODELS[model].split(), *how.split(), *QUIET]
        prepared = engine.prepare([*overrides, f"steps={LEAST}"], folder, allowed)
        try:
            step = prepared.step_time(prepared.plan())
        except NotPredicted as why:
            yield f"{case}: {why}"
            continue
        steps = min(MOST, max(LEAST, int(SECONDS / step.seconds)))
        chosen = [*overrides, f"steps={steps}"]
        with tempfile.TemporaryDirectory() as root:
            result = engine.run(chosen, config_dir=folder, allow_modules=allowed, root=root, quiet=True)
        yield PredictionRow(
            case, step.seconds, measured_step(result.summary), dict(step.parts), result.summary["step_time"]
        )


def measured_step(summary: dict[str, Any]) -> float:
    """The median; the mean where replicas exchange every few steps only."""
    return summary["step_time"]["median"]


def table(found: Sequence[PredictionRow], refused: Sequence[str], of: str) -> str:
    """Returns the table in Markdown."""
    errors = sorted(abs(row.error) for row in found)
    lines = [
        of,
        "",
        f"{len(found)} configurations: median error {median(errors):.1%}, "
        f"90th percentile {quantiles(errors, n=10)[-1]:.1%}, largest {errors[-1]:.1%}.",
        f"The mean of the signed errors is {sum(row.error for row in found) / len(found):+.1%}.",
        "",
        "| configuration | predicted ms | measured ms | error |",
        "|---|---:|---:|---:|",
        *(f"| {row.name} | {1e3 * row.predicted:.3g} | {1e3 * row.measured:.3g} | {row.error:+.1%} |" for row in found),
        "",
        "The largest errors:",
        "",
        "| configuration | error |",
        "|---|---:|",
        *(f"| {row.name} | {row.error:+.0%} |" for row in sorted(found, key=lambda row: -abs(row.error))[:5]),
    ]
    left_out = [fill(f"- Not predicted: {why}.", 100, subsequent_indent="  ") for why in refused]
    return "\n".join([*lines, "", *left_out] if left_out else lines)


def calibrated(folder: Path) -> str:
    """Measures this machine, as hardware=here in `folder`; returns what to say of it."""
    calibration, found = calibrate(told=lambda what, share: print(f"measuring {what}", file=sys.stderr, flush=True))
    write(calibration, found, folder / "hardware" / "here.yaml")
    return (
        f"On {calibration.cores} cores, {calibration.cpu}, torch {calibration.versions['torch']}, measured on "
        f"{calibration.date}.\nThe times of one product spread by {calibration.spread:.1%} meanwhile, and "
        f"{calibration.differing:.1%} of the cases differed between passes."
    )


def predictions(rounds: int) -> list[Outcome]:
    """Measures for `make bench`: `rounds` is 1 for all configurations, 0 for some."""
    with tempfile.TemporaryDirectory() as folder:
        _, found = report(Path(folder), CASES if rounds else CASES[::8])
    return [
        Outcome(row.name, 1e3 * row.predicted, 1e3 * row.measured, "measured", row.predicted / row.measured)
        for row in found
    ]


def report(folder: Path, cases: Sequence[str], is_there: bool = False) -> tuple[str, list[PredictionRow]]:
    of = "" if is_there else calibrated(folder)
    found: list[PredictionRow] = []
    refused: list[str] = []
    for row in rows("here", folder, cases):
        if isinstance(row, str):
            refused.append(row)
            print(row, file=sys.stderr, flush=True)
            continue
        found.append(row)
        took = {name: round(1e3 * part, 2) for name, part in row.parts.items() if part}
        split = {name: round(1e3 * part, 2) for name, part in row.found.items() if part}
        line = f"{row.error:+7.1%} {1e3 * row.predicted:8.2f} {1e3 * row.measured:8.2f}  {row.name}"
        print(line, took, split, file=sys.stderr, flush=True)
    text = table(found, refused, of)
    print(text)
    return text, found


def main(
    only: Annotated[list[str] | None, typer.Option(help="Configurations with this word.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Has hardware/here.yaml; else calibrate.")] = None,
    write_docs: Annotated[bool, typer.Option("--write", help=f"Put the table into {DOCS}.")] = False,
) -> None:
    cases = [case for case in CASES if not only or any(word in case for word in only)]
    with tempfile.TemporaryDirectory() as made:
        text, _ = report(folder or Path(made), cases, folder is not None)
    if write_docs:
        before, _, rest = DOCS.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    typer.run(main)
