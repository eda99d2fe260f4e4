"""`python -m benchmarks.published.models`: hours that public models trained, beside our predictions.

models.csv has one model in a row: its shape, tokens, devices, layout as far as the source states it, the hours of
devices that the source reports, and what they cover. docs/predictions.md has the rules that choose and complete rows.
"""

import csv
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from omegaconf import OmegaConf

from paceline.cost.device import Efficiency
from paceline.cost.training_time import flops_per_parameter, seconds_of

from .levels import predicted
from .rows import FLASH_2, Case, Row, case_of

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("models.csv")
DOCS = ROOT / "docs" / "predictions.md"
BEGIN, END = "<!-- training costs -->", "<!-- end of training costs -->"

EFFECTIVE = 0.9  # of a run's time goes to steps: Llama 3 405B's was more than that (Grattafiori et al. 2024, 3.3.4)
BATCH = 2**22  # tokens of a step, where a source states none: those of Llama 1 and 2
DEVICES = 1024  # where a source states none, or as many as the batch has samples
TENSOR = (1, 2, 4, 8)
LAYOUT = ("gpus", "tp", "zero", "micro_batch", "recompute")
CLOSE = 0.25
HARDWARE = {"A100": "a100", "A100 40 GB": "a100_40gb", "H100": "h100"}  # choices of hardware, by device
NOT_HERE = ("group", "note", "offload", "outcome", "cp", "ep", "peak_tflops")  # columns of runs.csv
NO_TIMES = ("step_s", "samples_per_s", "tokens_per_s", "tokens_per_s_gpu")
UNSAID: Row = {key: "" for key in (*NOT_HERE, *NO_TIMES)}


@dataclass(frozen=True)
class TrainedModel:
    """A row of models.csv."""

    row: Row
    case: Case

    @property
    def reported(self) -> float:
        """Hours of devices."""
        return float(self.row["gpu_hours"])

    @property
    def tokens(self) -> float:
        return 1e9 * float(self.row["tokens_b"])

    def predicted(self, effective: float = EFFECTIVE) -> float:
        """Returns the hours of devices by the step's time, as `paceline plan --tokens` predicts it."""
        its = self.case.layout
        tokens = its.data * its.micro_batches * its.micro_batch * self.case.of.context
        shares = FLASH_2 if self.row["attention"] == "flash 2" else {}
        seconds = predicted(self.case, replace(Efficiency(), **shares))
        return self.tokens / tokens * seconds * its.devices / 3600 / effective

    def by_rate(self) -> float | None:
        """Returns the hours of devices by `paceline cost`; None where conf/hardware has no rate of this precision."""
        if self.case.layout.dtype != "float16":
            return None
        choice = OmegaConf.load(ROOT / "conf" / "hardware" / f"{HARDWARE[self.case.cluster.device.name]}.yaml")
        flops = flops_per_parameter(self.case.layout.recompute == "full")
        return (
            seconds_of(1e9 * float(self.row["params_b"]), self.tokens, flops, 1, choice.machine.flops.bfloat16) / 3600
        )


def models(file: Path = FILE) -> list[TrainedModel]:
    with file.open(newline="", encoding="utf-8") as opened:
        return [TrainedModel(row, completed(row)) for row in csv.DictReader(opened)]


def completed(row: Row) -> Case:
    """Returns the layout of a row. What its source does not state is the first choice that fits in memory: the fewest
    devices for a layer, no recomputation rather than full, the largest micro-batch, or 1 with stages.
    """
    case = None
    for case in _layouts(row):
        if case.room is None or case.need <= case.room:
            break
    assert case is not None
    return case


def _layouts(row: Row) -> Iterator[Case]:
    batch = int(row["global_batch"] or BATCH // int(row["seq"]))
    zero = row["zero"] or ("3" if "FSDP" in row["framework"] else "1")
    for tensor in [int(row["tp"])] if row["tp"] else TENSOR:
        devices = int(row["gpus"] or min(DEVICES, batch * tensor))
        stages = int(row["pp"] or 1)
        samples = batch // (devices // (tensor * stages))
        sizes = [size for size in range(1 if stages > 1 else samples, 0, -1) if samples % size == 0]
        for recompute in [row["recompute"]] if row["recompute"] else ("none", "full"):
            for size in [int(row["micro_batch"])] if row["micro_batch"] else sizes:
                chosen = {"global_batch": batch, "zero": zero, "tp": tensor, "gpus": devices}
                chosen |= {"recompute": recompute, "micro_batch": size}
                case = case_of(UNSAID | row | {key: str(value) for key, value in chosen.items()})
                yield replace(case, layout=replace(case.layout, fused=row["attention"] != "none"))


def table(found: Sequence[TrainedModel]) -> str:
    """Returns how many are close, and all rows, in Markdown."""
    lines = [
        _line("models", f"step time / {EFFECTIVE:g}, within 25 %", "median", "`paceline cost`, within 25 %", "median"),
        "|---|---:|---:|---:|---:|",
        _scored("all", found),
        _scored("figures that we read in the source", [each for each in found if each.row["evidence"] == "read"]),
        _scored("layout stated in full", [each for each in found if all(each.row[key] for key in LAYOUT)]),
        *(
            _scored(name, [each for each in found if each.case.cluster.device.name == name])
            for name in sorted({each.case.cluster.device.name for each in found})
        ),
        _scored("all, without the 0.9", found, 1.0),
        "",
        "| model | tokens | devices | layout | reported h | predicted h | / reported | `cost` / reported |",
        "|---|---:|---|---|---:|---:|---:|---:|",
    ]
    for each in found:
        hours, rate = each.predicted(), each.by_rate()
        cells = [each.row["model"], f"{_number(each.tokens / 1e9)} B", _devices(each), _layout(each)]
        cells += [_number(each.reported), _number(hours), _marked(hours / each.reported)]
        lines.append(_line(*cells, "" if rate is None else f"{rate / each.reported:.2f}"))
    return "\n".join(lines)


def is_close(ratio: float) -> bool:
    return abs(ratio - 1) <= CLOSE


def _scored(what: str, models: Sequence[TrainedModel], effective: float = EFFECTIVE) -> str:
    cells: list[str] = []
    for hours in ([each.predicted(effective) for each in models], [each.by_rate() for each in models]):
        ratios = [found / each.reported for found, each in zip(hours, models, strict=True) if found is not None]
        error = f"{statistics.median(abs(ratio - 1) for ratio in ratios):.0%}".replace("%", " %") if ratios else ""
        cells += [f"{sum(map(is_close, ratios))} of {len(ratios)}", error]
    return _line(what, *cells)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _marked(ratio: float) -> str:
    return f"{ratio:.2f}" if is_close(ratio) else f"**{ratio:.2f}**"


def _devices(model: TrainedModel) -> str:
    stated = "" if model.row["gpus"] else "*"
    return f"{model.case.layout.devices:,}{stated} {model.case.cluster.device.name}"


def _layout(model: TrainedModel) -> str:
    """Degrees tensor x stages, the stage of ZeRO, the micro-batch, recomputation; `*`: not stated."""
    row, its = model.row, model.case.layout

    def said(key: str, what: str) -> str:
        return what if row[key] else f"{what}*"

    degrees = said("tp", f"{its.tensor} x {its.stages}")
    parts = [degrees, said("zero", f"ZeRO {its.zero}"), said("micro_batch", f"{its.micro_batch}")]
    return ", ".join([*parts, said("recompute", its.recompute)])


def main(write: Annotated[bool, typer.Option(help=f"Put the table into {DOCS.name}.")] = False) -> None:
    text = table(models())
    print(text)
    if write:
        before, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
