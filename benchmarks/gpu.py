"""`make gpu`: what one card does, in two slices of under nine minutes, as a table for docs/performance.md.

Each row comes from runs in processes of their own, so that one that fails costs its own row alone. A row says what
happened to it where it has no figure: what is missing, what failed, or that its time was over. TFLOP/s count 6 flops a
parameter and token (forward 2, backward 4), without what recomputation adds, as papers do. Ren et al. 2021 (arXiv
2101.06840), figure 7, have 40 TFLOP/s at 10 billion parameters on one V100 of 32 GB.

The seconds of a slice are divided by a plan (PLAN). A row has its own seconds and what those before it left over, and
never those of a row that comes after it. In the same way, trainings of one row divide its seconds. The goal, 10 billion
parameters in bf16 with offload, is the first row of slice 2 and has the largest share.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeVar

import torch
import typer
from torch import Tensor

from paceline.engine.config.compose import compose
from paceline.engine.planning.build import assemble
from paceline.tasks.losses.cross_entropy import cross_entropy

T = TypeVar("T")
NO_CARD = 3  # exit status, as of everything that this machine lacks
SLICE = 530.0  # seconds
LEAST = 15.0  # seconds that are worth a try
ROOT = Path(__file__).parents[1]
BF16 = ("precision=bf16", "optimizer=adam", "model.recompute=true")
WITHOUT, WITH = ("strategy=zero", "strategy.stage=0"), ("strategy=zero", "strategy.stage=3", "strategy.offload=all")
POOL = ("strategy=offload",)
PLAN: dict[int, dict[str, float]] = {  # seconds of each slice's rows, in their order
    1: {
        "resume": 60,
        "evaluation": 40,
        "bare loop": 40,
        "precision": 60,
        "compile": 60,
        "memory": 60,
        "calibration": 120,
        "tests": 90,
    },
    2: {"goal": 220, "speed": 150, "pool": 60, "largest": 100},
}
PUBLISHED = {"10b": "ZeRO-Offload on one V100 of 32 GB: 40 TFLOP/s"}
PEAK = 8192  # rows and columns of the product that says what the card can do
FIT = 0.05  # how near the largest model that fits is looked for, as a share of its parameters


@dataclass(frozen=True)
class GPURow:
    what: str
    figure: str
    beside: str = ""

    def __str__(self) -> str:
        return f"| {self.what} | {self.figure} | {self.beside} |"


class NoFigureError(Exception):
    """A row has no figure; the message gives the reason."""


@dataclass(frozen=True)
class Card:
    """The place where all rows are measured. `short`: tiny models and few steps, to see that everything runs."""

    device: str
    short: bool
    until: float  # of time.monotonic()
    folder: Path

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def part(self, of: int) -> "Card":
        """Returns the card for the next of so many trainings, which has an equal part of the seconds that are left."""
        return replace(self, until=self.until - self.left * (of - 1) / of)

    @property
    def steps(self) -> int:
        return 30 if self.short else 16  # a figure needs 10 timed steps, and 0.1 s

    def gpt(self, size: str) -> tuple[str, ...]:
        """Overrides of a GPT of `size`, and of its batches."""
        if self.short:
            return "model=gpt_1b", "model.n_layer=2", "model.width=32", "model.n_head=2", "data=text", *of_text(16, 2)
        return f"model=gpt_{size}", "data=text", *of_text(1024, 8)

    def train(self, name: str, *overrides: str) -> dict[str, Any]:
        """Returns the summary of a run. Raises NoFigureError with its last words where it does not end well."""
        patience = self.left
        if patience < LEAST:
            raise NoFigureError("left out: no time of its share was left")
        command = [str(Path(sys.executable).with_name("paceline")), "train", *overrides]
        if "--resume" not in overrides:
            command += ["--name", name, *EVERYWHERE, f"hardware.device={self.device}", "hardware.timeout=300"]
        try:
            ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=patience)
        except subprocess.TimeoutExpired:
            raise NoFigureError(f"did not end in the {patience:.0f} s of its share") from None
        if ended.returncode:
            raise NoFigureError(f"exit status {ended.returncode}: {last_line(ended.stderr)}")
        return json.loads((self.folder / "runs" / name / "summary.json").read_text())


EVERYWHERE = ("tracking=none", "measure.after=2", "epochs=100000", "checkpoint.every=0", "evaluate.every=100000")


def counted_down(each: Collection[T]) -> Iterator[tuple[int, T]]:
    """Yields each with how many are left, itself among them."""
    return zip(range(len(each), 0, -1), each, strict=True)


def of_text(context: int, batch: int) -> tuple[str, ...]:
    return f"data.context={context}", f"batch_size={batch}", "data.limit=64"


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1].replace("|", "/")[:200]


def step_of(summary: dict[str, Any]) -> float:
    """Returns the seconds of a median step. Raises NoFigureError where too little was timed."""
    found = summary["step_time"]["median"]
    if found is None:
        raise NoFigureError("too few steps for a figure")
    return found


def parameters(summary: dict[str, Any]) -> int:
    """Returns how many the model of a run in bf16 has, which keeps it in two bytes a parameter."""
    return summary["model_bytes"] // 2


def tokens_per_second(card: Card, summary: dict[str, Any]) -> float:
    return (2 * 16 if card.short else 8 * 1024) / step_of(summary)


# -- the rows: what they are about, and how they are found


def marked_tests(card: Card) -> Iterator[GPURow]:
    if not find_spec("pytest"):
        raise NoFigureError("pytest is not installed")
    chosen = ["--collect-only"] if card.short else []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests", "-p", "no:cacheprovider", *chosen]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(card.left, LEAST))
    yield GPURow("tests that are marked gpu", last_line(ended.stdout))


def against_a_bare_loop(card: Card) -> Iterator[GPURow]:
    """Puts one rank of data_parallel beside a loop in plain torch, the same model and batches."""
    batch, steps = (2 if card.short else 16), 60
    shape = ("model.n_layer=2", "model.width=32", "model.n_head=2") if card.short else ("model=gpt_100m",)
    how = ("model=gpt", *shape, "data=text", *of_text(16 if card.short else 512, batch), "hardware.workers=1")
    bare = bare_step(card, [*how, f"hardware.device={card.device}"], batch, steps)
    ours = step_of(card.train("data-parallel", *how, f"steps={steps}"))
    beside = f"bare loop {1e3 * bare:.2f} ms, ratio {ours / bare:.3f}"
    yield GPURow("data_parallel, one rank, gpt_100m in fp32", f"{1e3 * ours:.2f} ms", beside)


def bare_step(card: Card, overrides: list[str], batch: int, steps: int) -> float:
    """Returns the seconds of a median step of a loop in plain torch."""
    device, parts = torch.device(card.device), assemble(compose(overrides), ())
    model = parts.make_model().to(device)
    optimizer = parts.make_optimizer(model.parameters())
    taken = parts.load()[0].take(slice(0, batch))
    assert isinstance(taken.inputs, Tensor)
    inputs, targets, seconds = taken.inputs.to(device), taken.targets.to(device), list[float]()
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - began)
    return median(seconds[steps // 2 :])


def memory_by_kind(card: Card) -> Iterator[GPURow]:
    """Puts memory that was measured beside what the plan states, for one run on each engine."""
    for left, how in counted_down((("strategy=data_parallel",), WITHOUT, POOL)):
        name = " ".join(how)
        summary = card.part(left).train(
            f"memory-{how[0][9:]}-{len(how)}", *how, *card.gpt("400m"), "optimizer=adam", f"steps={card.steps}"
        )
        stated, measured = summary["predicted"]["memory"], summary["memory"]
        said = ", ".join(f"{kind} {mib(stated[kind])} / {mib(measured[kind])}" for kind in stated)
        yield GPURow(f"memory of {name}, MiB stated / measured", said, peak(summary))


def peak(summary: dict[str, Any]) -> str:
    """Says what the run had at its peak: of the card, where it ran on one, and of the host."""
    held = summary["memory"]
    host = f"the process's peak {mib(held['process_peak'])} MiB"
    if "device_peak" not in held:
        return host
    return f"the allocator's peak {mib(held['device_peak'])} of {mib(held['device_reserved'])} MiB reserved, {host}"


def mib(size: float) -> str:
    return f"{size / 2**20:,.0f}"


def precisions(card: Card) -> Iterator[GPURow]:
    """Steps of the same model in each precision, and how far its loss is from that of fp32."""
    plain = None
    for left, precision in counted_down(("fp32", "bf16", "fp16")):
        how = ("strategy=single", *card.gpt("100m"), f"precision={precision}", "optimizer=adam", f"steps={card.steps}")
        summary = card.part(left).train(f"precision-{precision}", *how)
        plain = summary["loss"] if plain is None else plain
        yield GPURow(
            f"precision={precision}, strategy=single",
            f"{1e3 * step_of(summary):.1f} ms",
            f"test loss {summary['loss']:.4f}, {summary['loss'] - plain:+.4f} from fp32",
        )


def compiled(card: Card) -> Iterator[GPURow]:
    """Puts steps of one model with torch.compile off and on side by side."""
    model = ("model.hidden=[16]",) if card.short else (*card.gpt("400m"), "precision=bf16", "optimizer=adam")
    steps = 2000 if card.short else card.steps  # the small model's take 0.2 ms, and a figure needs 0.1 s
    how = ("strategy=single", *model, f"steps={steps}")
    plain = step_of(card.part(2).train("eager", *how))
    summary = card.train("compiled", *how, "compile=true")
    ours = step_of(summary)
    beside = f"eager {1e3 * plain:.1f} ms, {plain / ours:.2f} times as fast; compiled in {summary['compile_s']:.0f} s"
    yield GPURow("compile=true, gpt_400m, bf16", f"{1e3 * ours:.1f} ms", beside)


def resumed(card: Card) -> Iterator[GPURow]:
    """Compares a run that was taken up again with one that was not, by the digest of the weights."""
    how = ("checkpoint.every_steps=4", "strategy=data_parallel", "hardware.workers=1")
    whole = card.part(3).train("whole", *how, "steps=8")
    card.part(2).train("halved", *how, "steps=4")
    again = card.train("halved", "--resume", "halved", "steps=8")
    alike = whole["model_sha256"] == again["model_sha256"]
    yield GPURow("a resumed run and an uninterrupted one", "the same bits" if alike else "OTHER BITS")


def evaluated(card: Card) -> Iterator[GPURow]:
    """Puts the accuracy that the run measured beside that of the same weights on the CPU."""
    on_card = card.part(2).train("judged", "strategy=single", "steps=40")
    weights = f"weights={card.folder / 'runs' / 'judged'}"
    on_cpu = card.train("judged-cpu", "strategy=single", weights, "steps=1", "optimizer.lr=0", "hardware.device=cpu")
    yield GPURow("accuracy of the same weights", f"{on_card['accuracy']:.4f}", f"on the CPU {on_cpu['accuracy']:.4f}")


def calibrated(card: Card) -> Iterator[GPURow]:
    """Yields the error of predicted steps on this card, after it was measured."""
    command = [
        str(Path(sys.executable).with_name("paceline")),
        "calibrate",
        "--force",
        "--out",
        "conf/hardware/here.yaml",
    ]
    command += ["--quick"] if card.short else []
    patience = max(card.part(2).left, LEAST)
    ended = subprocess.run(command, cwd=card.folder, capture_output=True, text=True, timeout=patience)
    if ended.returncode:
        raise NoFigureError(f"calibrate: exit status {ended.returncode}: {last_line(ended.stderr)}")
    here = ("--config-dir", "conf", "hardware=here", "hardware.workers=1")
    steps = {
        "mlp": ("batch_size=256", "steps=600"),
        "gpt_100m, fp32": (*card.gpt("100m"), f"steps={card.steps}"),
        "gpt_400m, bf16": (*card.gpt("400m"), "precision=bf16", f"steps={card.steps}"),
    }
    for left, (name, how) in counted_down(steps.items()):
        summary = card.part(left).train(f"predicted-{left}", *here, "strategy=single", *how)
        measured, predicted = 1e3 * step_of(summary), summary.get("predicted_step_ms")
        beside = (
            "not predicted" if predicted is None else f"predicted {predicted:.2f} ms, {predicted / measured - 1:+.1%}"
        )
        yield GPURow(f"a step of {name}", f"{measured:.2f} ms", beside)


def goal(card: Card) -> Iterator[GPURow]:
    """10 billion parameters with offload, and what their TFLOP/s are a share of."""
    peak = product_teraflops(card)
    yield GPURow(f"a product of {PEAK} x {PEAK} in bf16", f"{peak:.1f} TFLOP/s")
    yield speed(card, "10b", WITH, peak)


def speeds(card: Card) -> Iterator[GPURow]:
    """All other sizes, with and without offload."""
    peak = product_teraflops(card)
    others = (("1b", WITHOUT), ("1b", WITH), ("4b", WITHOUT), ("4b", WITH), ("10b", WITHOUT))
    for left, (size, how) in counted_down(others):
        yield speed(card.part(left), size, how, peak)


def speed(card: Card, size: str, how: tuple[str, ...], peak: float) -> GPURow:
    """Returns the TFLOP/s of a GPT in bf16, and their share of what a large product reaches here."""
    what = f"gpt_{size}, {'strategy.offload=all' if how is WITH else 'without offload'}, bf16, recomputed"
    try:
        summary = card.train(f"speed-{size}-{len(how)}", *how, *BF16, *card.gpt(size), f"steps={card.steps}")
        rate = tokens_per_second(card, summary)
    except NoFigureError as error:
        return GPURow(what, str(error), PUBLISHED.get(size, ""))
    reached = 6 * parameters(summary) * rate / 1e12
    figure = f"{rate:,.0f} tokens/s, {reached:.1f} TFLOP/s, {reached / peak:.0%}"
    return GPURow(what, figure, PUBLISHED.get(size, ""))


def product_teraflops(card: Card) -> float:
    size = 256 if card.short else PEAK
    a = torch.randn(size, size, dtype=torch.bfloat16, device=card.device)
    seconds = list[float]()
    for _ in range(12):
        began = time.perf_counter()
        product = a @ a
        product[0, 0].item()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / median(seconds) / 1e12


def largest(card: Card) -> Iterator[GPURow]:
    """The widest GPT of 32 layers that trains, by halving between one that does and one that does not."""
    for left, how in counted_down((WITHOUT, WITH)):
        half, why = card.part(left), "no time of its share was left"
        low, high, best = 0, 2 if card.short else 256, 0
        while high - low > 1 and (best == 0 or (high / low) ** 2 > 1 + FIT) and half.left >= LEAST:
            middle = (low + high) // 2
            shape = ("model.n_layer=2", f"model.width={64 * middle}", f"model.n_head={middle}")
            shape = shape if card.short else ("model.n_layer=32", *shape[1:])
            try:
                summary = half.train(f"largest-{len(how)}-{middle}", *how, *BF16, *card.gpt("1b"), *shape, "steps=2")
            except NoFigureError as error:
                high, why = middle, str(error)
            else:
                low, best = middle, parameters(summary)
        between = f"{low * 64} wide trains, {high * 64} does not or was not tried"
        figure = f"{best / 1e9:.2f} B" if best else f"none was found: {why}"
        yield GPURow(f"the largest GPT, {' '.join(how[1:])}", figure, between)


def pool_beside_deepspeed(card: Card) -> Iterator[GPURow]:
    for left, how in counted_down((POOL, WITH)):
        what = f"gpt_400m, {' '.join(how)}, fp32"
        shape = (*card.gpt("400m"), "optimizer=adam", f"steps={card.steps}")
        try:
            summary = card.part(left).train(f"pool-{len(how)}", *how, *shape)
            yield GPURow(what, f"{1e3 * step_of(summary):.0f} ms", peak(summary))
        except NoFigureError as error:
            yield GPURow(what, str(error))


Finds = Callable[[Card], Iterator[GPURow]]
FINDS: dict[str, Finds] = {
    "resume": resumed,
    "evaluation": evaluated,
    "bare loop": against_a_bare_loop,
    "precision": precisions,
    "compile": compiled,
    "memory": memory_by_kind,
    "calibration": calibrated,
    "tests": marked_tests,
    "goal": goal,
    "speed": speeds,
    "pool": pool_beside_deepspeed,
    "largest": largest,
}


def rows(plan: dict[str, float], card: Card, finds: dict[str, Finds] = FINDS) -> Iterator[GPURow]:
    """Yields all of them; one that has no figure says why, and the others go on.

    Args:
        plan: seconds of each; where the card has more or fewer in all, they are its parts
    """
    shares = list(plan.values())
    whole = card.left
    for at, name in enumerate(plan):
        kept = whole * sum(shares[at + 1 :]) / sum(shares)
        theirs = replace(card, until=card.until - kept)
        try:
            yield from finds[name](theirs)
        except NoFigureError as error:
            yield GPURow(name, str(error))
        except subprocess.TimeoutExpired as error:
            yield GPURow(name, f"did not end in the {error.timeout:.0f} s of its share")
        except Exception as error:  # a mistake of one row costs no other
            yield GPURow(name, f"{type(error).__name__}: {last_line(str(error))}")


def main(
    part: Annotated[list[int] | None, typer.Option("--slice", min=1, max=2, help="1 or 2; both, else.")] = None,
    device: Annotated[str, typer.Option(help="cuda, or cpu to see that the rows run.")] = "cuda",
    short: Annotated[bool, typer.Option("--short", help="Tiny models: no figure to quote.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Rows of these names alone.")] = None,
) -> None:
    """Measure one card, and print a table."""
    if device == "cuda" and not torch.cuda.is_available():
        print("make gpu: torch finds no CUDA device here", file=sys.stderr)
        raise typer.Exit(NO_CARD)
    name = torch.cuda.get_device_name(0) if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}{', shortened: no figures to quote' if short else ''}\n")
    print("| what | figure | beside it |\n|---|---|---|")
    for number in part or PLAN:
        plan = {each: seconds for each, seconds in PLAN[number].items() if not only or each in only}
        with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as folder:
            patience = SLICE * (3 if short else 1)  # to see that all rows run, and not how fast
            for row in rows(plan, Card(device, short, time.monotonic() + patience, Path(folder))):
                print(row, flush=True)


if __name__ == "__main__":
    typer.run(main)
