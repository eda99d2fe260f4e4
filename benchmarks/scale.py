"""`python -m benchmarks.scale`: the tables of docs/scale.md, what the closed forms say of up to 100,000 workers.

Nothing is measured here. `--write` puts the tables into the page.
"""

from collections.abc import Callable, Iterator, Sequence
from math import cos, log2, pi
from pathlib import Path
from typing import Annotated

import torch
import typer

from paceline.comm.network import Network, NetworkLink
from paceline.conf.groups import CONF
from paceline.cost.device import Efficiency
from paceline.cost.devices import DEVICES, INSIDE
from paceline.cost.expected import expected_maximum
from paceline.cost.interruptions import daly, expected_time
from paceline.cost.layout import ParallelLayout
from paceline.cost.links import Link, Links
from paceline.cost.published import efficiency
from paceline.cost.step import Cluster, step_time
from paceline.cost.transformer import Transformer
from paceline.exchange.collectives import HalvingDoubling, Hierarchical, RecursiveDoubling, Ring, Star, Tree
from paceline.exchange.collectives.base import seconds
from paceline.strategies import Sync
from paceline.strategies.core.cost import World
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.gossip import Gossip
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.tracking.files import read_yaml

from .published.levels import predicted
from .published.models import UNSAID
from .published.rows import Row, case_of, measured

DOCS = Path(__file__).parents[1] / "docs" / "scale.md"
WORKERS = (64, 1_024, 16_384, 100_000)
PER_HOST = 8
ENTRIES = 8_030_261_248  # of model=llama_8b with a vocabulary of 128,256
GRADIENT, SMALL = 2 * ENTRIES, 2**20  # bytes: of bfloat16; of one message
ALGORITHMS = {
    "ring": Ring(),
    "halving_doubling": HalvingDoubling(),
    "recursive_doubling": RecursiveDoubling(),
    "tree": Tree(),
    "star": Star(),
    "hierarchical": Hierarchical(),
}
PERIOD = 100
PARAMETERS = 16  # that the entries are cut into, all alike: a server holds whole ones
MODES: dict[str, Callable[[], Sync]] = {
    "bsp": BSP,
    "parameter_server": ParameterServer,
    f"parameter_server, sync.servers={PARAMETERS}": lambda: ParameterServer(servers=PARAMETERS),
    "gossip": Gossip,
    "gossip_exponential": lambda: Gossip("one_peer_exponential"),
    f"local_sgd, sync.period={PERIOD}": lambda: LocalSGD(period=PERIOD),
}
LLAMA_405B = Transformer(
    126, 16384, 128, 8192, 128256, inner=53248, kv_heads=8, gated=True, tied=False, positions=False
)
TENSOR, STAGES, CHUNKS, SEQUENCES = 8, 16, 8, 2_048
STRAGGLERS = {
    "lognormal, sigma=0.05": ("lognormal", {"sigma": 0.05}),
    "exponential, base=0.95 scale=0.05": ("exponential", {"base": 0.95, "scale": 0.05}),
    "pareto, alpha=20": ("pareto", {"alpha": 20.0}),
    "pareto, alpha=2.5": ("pareto", {"alpha": 2.5}),
}
# Hours of one device between interruptions: 419 unexpected ones in 54 days of 16,384 (Grattafiori et al. 2024, 3.3.4)
BETWEEN = 54 * 24 * 16_384 / 419
WORK = 54 * 24.0  # hours
SAVING = ((1 / 60, 10 / 60), (10 / 3600, 2 / 60))  # hours of a checkpoint, and of a restart

LLAMA = UNSAID | {
    "arch": "llama", "gpu": "H100-SXM", "gpu_mem_gb": "80", "seq": "8192", "vocab": "128256", "kv_heads": "8",
    "interconnect": "NVLink + 8x400 Gb/s InfiniBand a node", "framework": "NeMo 25.02 (Megatron-Core, TP overlap)",
    "outcome": "ok",
    "precision": "bf16", "cp": "2", "zero": "1", "micro_batch": "1", "recompute": "none", "tokens_per_s_gpu": "",
    "tokens_per_s": "", "samples_per_s": "", "params_b": "",
}  # fmt: skip
LLAMA_70 = LLAMA | {
    "group": "dgxc-llama3-70b", "model": "Llama 3.1 70B", "hidden": "8192", "layers": "80", "heads": "64",
    "ffn": "28672", "tp": "4", "pp": "4", "vp": "5", "source": "NVIDIA/dgxc-benchmarking v25.02.02",
}  # fmt: skip
LLAMA_405 = LLAMA | {
    "group": "dgxc-llama3-405b", "model": "Llama 3.1 405B", "hidden": "16384", "layers": "126", "heads": "128",
    "ffn": "53248", "tp": "8", "pp": "9", "vp": "7", "source": "NVIDIA/dgxc-benchmarking v25.02.02",
}  # fmt: skip
GPT_3 = UNSAID | {
    "outcome": "ok",
    "group": "nemo-launcher-a100", "model": "GPT-3 175B", "arch": "gpt", "hidden": "12288", "layers": "96",
    "heads": "96", "kv_heads": "", "ffn": "49152", "vocab": "51200", "seq": "2048", "gpu": "A100-SXM",
    "gpu_mem_gb": "80", "interconnect": "NVLink + HDR InfiniBand (DGX SuperPOD)", "framework": "NeMo Framework 23.07",
    "precision": "bf16", "tp": "4", "pp": "8", "vp": "12", "zero": "", "micro_batch": "", "recompute": "",
    "params_b": "", "global_batch": "2048", "source": "NVIDIA/NeMo-Framework-Launcher a224d98326",
}  # fmt: skip
INTERN = UNSAID | {
    "outcome": "ok",
    "group": "internevo-zero1-scope", "model": "InternLM 7B", "arch": "llama", "hidden": "4096", "layers": "32",
    "heads": "32", "kv_heads": "", "ffn": "", "vocab": "103168", "seq": "2048", "gpu": "A100-SXM", "gpu_mem_gb": "80",
    "interconnect": "NVLink + 4x100 Gb/s RoCE a node", "framework": "InternEvo", "precision": "bf16", "tp": "1",
    "pp": "1", "vp": "", "zero": "1", "micro_batch": "2", "recompute": "none", "params_b": "7",
    "source": "InternLM/InternEvo c628a8c874",
}  # fmt: skip
PUBLISHED: tuple[Row, ...] = (
    LLAMA_70 | {"gpus": "512", "dp": "16", "global_batch": "1024", "step_s": "14.8"},
    LLAMA_70 | {"gpus": "1024", "dp": "32", "global_batch": "2048", "step_s": "14.86"},
    LLAMA_70 | {"gpus": "2048", "dp": "64", "global_batch": "4096", "step_s": "14.84"},
    LLAMA_405 | {"gpus": "576", "dp": "4", "global_batch": "252", "step_s": "17.5"},
    LLAMA_405 | {"gpus": "1152", "dp": "8", "global_batch": "504", "step_s": "17.6"},
    LLAMA_405 | {"gpus": "2304", "dp": "16", "global_batch": "1008", "step_s": "17.7"},
    GPT_3 | {"gpus": "512", "dp": "16", "tokens_per_s": "58211"},
    GPT_3 | {"gpus": "1024", "dp": "32", "tokens_per_s": "109684"},
    *(
        INTERN | {"gpus": gpus, "dp": gpus, "global_batch": str(8 * int(gpus)), "tokens_per_s_gpu": rate, "note": note}
        for note, figures in (
            ("zero1=8", {"64": "3944", "1024": "3625"}),
            ("zero1=all", {"64": "3690", "1024": "2271"}),
        )
        for gpus, rate in figures.items()
    ),
)


def network(between: str = "infiniband") -> Network:
    """Returns the network of `hardware/network=BETWEEN hardware.workers_per_host=8`."""
    links = [read_yaml(CONF / "hardware" / "network" / f"{name}.yaml") for name in (between, "nvlink")]
    return Network(*(NetworkLink(**each) for each in links), workers_per_host=PER_HOST)


def world(workers: int) -> World:
    return World(workers, hosts=tuple(rank // PER_HOST for rank in range(workers)))


def sums(nbytes: float) -> Iterator[list[str]]:
    """Yields the seconds of one all-reduce by each algorithm."""
    for name, each in ALGORITHMS.items():
        yield [f"`{name}`", *(_time(seconds(each.phases(nbytes, world(k)), network())) for k in WORKERS)]


def bytes_sent() -> Iterator[list[str]]:
    """Yields GB a step: of a worker, and of the busiest server at each number of workers."""
    one = torch.nn.Parameter(torch.empty(ENTRIES // PARAMETERS, dtype=torch.bfloat16, device="meta"))
    weights = [one] * PARAMETERS
    for name, make in MODES.items():
        costs = [make().cost(weights, world(k)) for k in WORKERS]
        servers = [sum(cost.server.values()) / 1e9 for cost in costs]
        yield [
            f"`{name}`",
            f"{sum(costs[-1].worker.values()) / 1e9:,.4g}",
            *(f"{each:,.4g}" if each else "" for each in servers),
        ]


def mixing() -> Iterator[list[str]]:
    """Yields the rounds of gossip that halve the replicas' variance about their mean."""
    for k in WORKERS:
        second = 1 / 3 + 2 / 3 * cos(2 * pi / k)
        yield [f"{k:,}", f"{-1 / (2 * log2(second)):,.0f}", f"{log2(k):.1f}"]


def hybrids() -> Iterator[list[str]]:
    """Yields the modelled step of Llama 3.1 405B: one batch on more devices, then a batch that grows with them."""
    for data in (16, 64, 128, 512, 1_024):
        yield _hybrid(data, SEQUENCES)
    yield _hybrid(781, 16 * 781)


def _hybrid(data: int, batch: int) -> list[str]:
    layout = ParallelLayout(
        batch, 1, data=data, tensor=TENSOR, stages=STAGES, chunks=CHUNKS, zero=1, fused=True,
        sequence=True, overlap=True, dtype="bfloat16",
    )  # fmt: skip
    device = DEVICES["H100"]
    cluster = Cluster(device, Links(INSIDE["H100"], Link(6e-5, 4e11), PER_HOST))
    step = step_time(LLAMA_405B, layout, cluster, efficiency(device))
    mfu = LLAMA_405B.pass_flops(batch, False) / step.total / (layout.devices * device.peak["bfloat16"])
    bubble, data_share = step.bubble / step.total, (step.data + step.shards) / step.total
    tokens = batch * LLAMA_405B.context / 1e6
    cells = [f"{layout.devices:,}", f"{tokens:,.1f}", f"{step.total:.2f}", f"{mfu:.1%}", f"{bubble:.0%}"]
    return [*cells, f"{data_share:.1%}"]


def waiting() -> Iterator[list[str]]:
    """Yields how many times as long as the hardware's own speed the slowest worker takes, on average."""
    for name, (kind, knobs) in STRAGGLERS.items():
        yield [f"`{name}`", *(f"{expected_maximum(kind, knobs, k):.3g}" for k in WORKERS)]


def failures() -> Iterator[list[str]]:
    """Yields the hours between interruptions, the interval of checkpoints, and the share of time that is lost."""
    for k in WORKERS:
        between = BETWEEN / k
        cells = [f"{k:,}", f"{between:,.3g}"]
        for checkpoint, restart in SAVING:
            interval = daly(checkpoint, between)
            lost = expected_time(WORK, interval, checkpoint, restart, between) / WORK - 1
            cells += [f"{60 * interval:.0f}", f"{lost:.1%}"]
        yield cells


def published() -> Iterator[list[str]]:
    """Yields steps that others measured beside the model's."""
    for row in PUBLISHED:
        case = case_of(row)
        took, found = measured(case), predicted(case, Efficiency())
        note = f", {row['note']}" if row["note"] else ""
        yield [
            f"{row['model']}{note}", f"{int(row['gpus']):,} {case.cluster.device.name}",
            f"{int(row['global_batch']):,}", f"{took:.2f}", f"{found:.2f}", f"{found / took - 1:+.0%}", row["source"],
        ]  # fmt: skip


def tables() -> dict[str, str]:
    """Returns each table of the page in Markdown, by its name there."""
    many = [f"{k:,}" for k in WORKERS]
    return {
        "sums": _table(["all-reduce of 16 GB", *many], sums(GRADIENT)),
        "small sums": _table(["all-reduce of 1 MiB", *many], sums(SMALL)),
        "bytes": _table(["sync mode", "a worker", *(f"a server of {k}" for k in many)], bytes_sent()),
        "mixing": _table(["workers", "`gossip`, ring", "`gossip_exponential`, the exact mean"], mixing()),
        "hybrids": _table(["H100s", "M tokens a step", "s", "MFU", "bubble", "gradients and weights"], hybrids()),
        "stragglers": _table(["factors", *many], waiting()),
        "failures": _table(
            ["devices", "hours between", "interval, 1 min and 10 min", "lost", "interval, 10 s and 2 min", "lost"],
            failures(),
        ),
        "published": _table(["run", "devices", "batch", "measured s", "model s", "error", "source"], published(), 2),
    }


def _table(titles: Sequence[str], rows: Iterator[list[str]], names: int = 1) -> str:
    """`names`: columns of words, at the left."""
    rule = ["---"] * names + ["---:"] * (len(titles) - names)
    return "\n".join(f"| {' | '.join(each)} |" for each in [list(titles), rule, *rows]).replace("%", " %")


def _time(took: float) -> str:
    return f"{took:,.3g} s" if took >= 1 else f"{took * 1e3:.3g} ms"


def written(page: str) -> str:
    """Returns the page with its tables written anew."""
    for name, table in tables().items():
        before, begin, rest = page.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert begin and end, f"{DOCS.name}: has no place for the table '{name}'"
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def main(write: Annotated[bool, typer.Option(help=f"Put the tables into {DOCS.name}.")] = False) -> None:
    print("\n\n".join(f"{name}\n{table}" for name, table in tables().items()))
    if write:
        DOCS.write_text(written(DOCS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
