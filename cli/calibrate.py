"""`paceline calibrate`: how fast this machine is, measured, as a choice of `hardware`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..conf.errors import ConfigError
from .options import Format
from .output import aligned, note, results_alone, shortest, show, show_json

if TYPE_CHECKING:
    from ..cost.calibration import Calibration


@results_alone()
def calibrate(
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write, DIR/hardware/NAME.yaml; conf-of-mine/hardware/HOST.yaml otherwise."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write it even where the machine was not left alone.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few sizes, a few seconds: to try it out, not to rely on.")
    ] = False,
    format: Format = "table",
) -> None:
    """Measure this machine: kernels, what training takes beside, links between workers, and the disk.

    Leave the machine alone meanwhile: it takes a minute or two. What is written is a choice of hardware, with which
    plan predicts the step of any configuration, and runs tell predicted beside measured.

    \b
    paceline calibrate
    paceline calibrate --out conf-of-mine/hardware/lab.yaml
    paceline plan --config-dir conf-of-mine hardware=lab model=cnn data=fashion_mnist
    """
    from ..engine.base.errors import MachineError
    from ..engine.calibration.session import calibrate, cores_in_use
    from ..engine.calibration.write import FOLDER, check_writable, default_name, write

    if out is not None and (out.suffix != ".yaml" or out.parent.name != "hardware"):
        raise ConfigError(
            f"--out {out}: a choice of hardware is a file DIR/hardware/NAME.yaml, such as mine/hardware/lab.yaml"
        )
    check_writable(out or FOLDER / "hardware" / "this.yaml")
    busy = cores_in_use()
    calibration, found = calibrate(quick, _progress)
    file = out or FOLDER / "hardware" / f"{default_name(calibration.host)}.yaml"
    disturbed = calibration.disturbance()
    if disturbed and not force:
        raise MachineError(
            f"the machine was not left alone: {disturbed} ({busy:.1f} cores were busy); nothing was written; try again "
            "when it is idle, or use --force"
        )
    picture = write(calibration, found, file)
    if disturbed:
        note(f"the machine was not left alone: {disturbed}")
    note(f"written: {shortest(file)}; picture: {shortest(picture)}")
    if format == "json":
        from ..cost.calibration import plain

        show_json({"file": str(file), "picture": str(picture), **plain(calibration)})
    else:
        show("\n".join(_for_people(calibration, file)))


def _progress(what: str, share: float) -> None:
    note(f"{share:4.0%}  measuring {what}")


def _for_people(calibration: "Calibration", file: Path) -> list[str]:
    table: list[list[Any]] = [["processes", "threads each", "largest product", "copy", "an operator", "a step beside"]]
    for rates in calibration.rates:
        point = max(rates.tables["product"].points, key=lambda point: point[1] * point[2] * point[3])
        entries, seconds = max(rates.tables["copy_"].points)
        table.append(
            [
                str(rates.processes),
                str(rates.threads),
                f"{2e-9 * point[0] * point[1] * point[2] * point[3] / point[4]:,.1f} GF/s",
                f"{8e-9 * entries / seconds:,.1f} GB/s",
                f"{1e6 * min(p[1] for p in rates.tables['mul'].points):,.1f} us",
                f"{1e6 * rates.costs['step']:,.0f} us",
            ]
        )
    links = [["exchange", "workers", "alpha", "1 / beta", "residual"]]
    for link in calibration.links:
        fit = link.fit
        rate = f"{1e-9 / fit.beta:,.2f} GB/s" if fit.beta else "-"
        links.append([link.operation, str(link.workers), f"{1e6 * fit.alpha:,.0f} us", rate, f"{fit.residual:.0%}"])
    disk = calibration.disk
    return [
        f"{calibration.host}: {calibration.cores} cores, {calibration.cpu}",
        "",
        *aligned(table, numbers_from=0),
        "",
        *aligned(links, numbers_from=1),
        "",
        f"disk: {1e-9 * disk.bandwidth:,.2f} GB/s, {1e3 * disk.latency:,.2f} ms to force a small file",
        f"spread of the same measure: {calibration.spread:.1%}",
        f"cases that took another time in the second pass: {calibration.differing or 0.0:.1%}",
        "",
        f"use it: paceline plan --config-dir {file.parent.parent} hardware={file.stem}",
    ]
