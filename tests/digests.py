"""Records what some hundred runs do, and compares it after a change that must change no behaviour.

    python tests/digests.py record FILE     before it: makes each run that FILE lacks twice; keeps what repeats
    python tests/digests.py compare FILE    after it; exit status 1 where a run differs, and how

The runs try each choice of each group, on the virtual cluster and as processes, some combinations, and some resumes. A
digest holds the result row (weights' SHA-256, bytes by primitive, messages, memory, staleness, modelled times, event
digest), the names of the files and the kinds of the records; of a refusal its class, exit status and words. Bits depend
on the machine and on torch, so that a recording is good on the machine that made it alone.
"""

import json
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from test_rooms import COMPANIONS

from paceline import engine
from paceline.cli.choices import groups

NO_LIMIT = {"data=disks", "data=sparse", "experiment=hogwild_sparse"}
RACING = {"asp", "ssp", "hogwild", "hogwild_locked", "easgd_async", "easgd_momentum", "gossip_async", "fedbuff"}
RACING |= {"backup_workers"}  # on processes these depend on who comes first
UNKNOWN = ("process_peak", "memory.other")  # they are of the process
SMALL = (
    "tracking=none",
    "data.limit=96",
    "batch_size=8",
    "steps=6",
    "seed=3",
    "evaluate.every=1",
    "checkpoint.every=0",
)
VIRTUAL, PROCESSES = ("hardware=virtual", "hardware.workers=3"), ("hardware.workers=2", "hardware.timeout=60")
LEFT_OUT = {"hardware", "tracking", "experiment", "hardware/network", "distillation"}
OF_FILES = {"arrays", "hugging_face", "images", "svmlight", "table", "fashion_mnist"}
LARGE = {"gpt_100m", "gpt_10b", "gpt_1b", "gpt_20b", "gpt_400m", "gpt_4b", "alexnet"}
LARGE |= {"llama_1b", "llama_8b", "llama_70b", "llama_405b", "mixtral_8x7b"}
GPT = "model=gpt data=text data.context=16 model.width=32"
DEEP = "model.hidden=[16,16,16]"
MORE = (
    *(f"strategy=pipeline strategy.schedule={each} {DEEP}" for each in ("gpipe", "1f1b", "zb_h1", "pipedream")),
    *(f"strategy=pipeline {DEEP} hardware.workers=4 {each}" for each in ("sync=local_sgd", "sync=bsp compress=topk")),
    f"strategy=pipeline strategy.schedule=interleaved strategy.chunks=2 {DEEP}",
    f"strategy=pipeline strategy.schedule=pipedream_2bw {DEEP}",
    f"strategy=hybrid {GPT} hardware.workers=4",
    "strategy=hybrid hardware.workers=4",
    "strategy=single hardware.workers=1",
    *(f"strategy={each} {GPT}" for each in ("tensor", "pipeline", "offload", "torch_fsdp", "torch_tensor")),
    *(f"sync=bsp sync.shard={each} optimizer=adam" for each in ("optimizer", "gradients")),
    *(
        f"strategy=offload {each}"
        for each in (f"model.recompute=true {GPT}", "optimizer=adam", "strategy.delayed_update=true optimizer=adam")
    ),
    *(f"hardware=virtual sync={each}" for each in ("ssp sync.staleness=1 schedule=cosine", "asp compress=topk")),
    *(f"hardware=virtual sync=gossip {each}" for each in ("compress=qsgd", "aggregate=self_centered_clipping")),
    *(
        f"hardware=virtual sync=local_sgd {each}"
        for each in ("average=ema", "compress=topk", "sync.period=2 clip=norm")
    ),
    *(f"hardware=virtual sync=diloco {each}" for each in ("compress=int8", "sync.period=2")),
    *(f"hardware=virtual sync=fedavg hardware.workers=3 client={each}" for each in ("scaffold", "fednova server=adam")),
    "hardware=virtual sync=fedavg sync.clients=12 sync.fraction=0.25 sync.momentum=reset hardware.workers=3",
    "hardware=virtual sync=fedavg compress=topk server=momentum aggregate=median hardware.workers=5",
    "hardware=virtual hardware.workers=4 sync=backup_workers sync.backups=1 stragglers=exponential",
    "hardware=virtual sync=parameter_server aggregate=krum attack=sign_flip hardware.workers=7",
    *(f"hardware=virtual hardware.workers=5 sync={each} aggregate=median attack=alie" for each in ("bsp", "local_sgd")),
    *(
        f"hardware=virtual hardware.workers=3 stragglers=pareto sync={each}"
        for each in ("asp", "easgd_async", "gossip")
    ),
    *(f"hardware=virtual hardware.workers=4 collective={each}" for each in ("ring", "tree", "recursive_doubling")),
    *("accumulate=2", "accumulate=2 compress=topk", "precision=bf16 sync=local_sgd", "precision=fp16 clip=norm"),
    *("sync=asp average=ema", "sync=local_sgd average=swa average.start=1", "sync=ssp clip=norm"),
    *(
        "adapt=lora adapt.rank=2 sync=local_sgd",
        "adapt=pufferfish model.hidden=[16,16,16] compress=topk",
        "adapt=quantized model.hidden=[16,16,16]",
        "adapt=pruned clip=norm",
    ),
    "hardware=virtual adversarial_training=fast evaluate.attack=fgsm",
    "adversarial_training=pgd evaluate.attack=pgd sync=fedavg",
    *("privacy=dp_sgd partition=poisson accumulate=2", "privacy=dp_sgd partition=poisson clip=norm"),
    *("callbacks=[best,gradient_norm,noise_scale]", "callbacks=[early_stop] average=swa average.start=1"),
    *("optimizer=lars schedule=cosine clip=norm", "optimizer=adam precision=bf16 average=ema"),
    *("experiment=kmeans", "experiment=pca", "experiment=pegasos", "experiment=ridge", "experiment=three_parties"),
    "experiment=hogwild_sparse",
)
RESUMED = (
    *("sync=bsp", "sync=local_sgd", "sync=easgd", "sync=gossip", "sync=ssp", "sync=fedavg", "sync=diloco", "sync=dion"),
    *("sync=bsp compress=topk", "sync=bsp sync.shard=optimizer optimizer=adam", "average=ema", "precision=fp16"),
    *(
        "strategy=torch_ddp",
        "strategy=torch_fsdp",
        "strategy=offload",
        "adapt=lora",
        "adapt=pruned",
        "adapt=pufferfish",
    ),
    *(
        f"strategy=pipeline {DEEP}",
        f"strategy=tensor {GPT}",
        "hardware=virtual sync=asp",
        "callbacks=[early_stop,best]",
    ),
    *("sync=sparta", "sync=streaming_diloco", "sync=push_sum", "sync=noloco", "sync=parameter_server", "sync=fedbuff"),
    *("schedule=cosine", "privacy=dp_sgd partition=poisson", "schedule=cosine optimizer=adam"),
)


def runs() -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yields the overrides of each run, and whether it is resumed."""
    for group, choices in sorted(groups().items()):
        for name in sorted(choice.name for choice in choices if group not in LEFT_OUT):
            if (group == "data" and name in OF_FILES) or (group == "model" and name in LARGE):
                continue
            typed = (*COMPANIONS.get((group, name), ()), f"{group}={f'[{name}]' if group == 'callbacks' else name}")
            typed = tuple(each for each in typed if "factors.txt" not in each) + (
                ("stragglers.path=factors.txt",) if name == "trace" else ()
            )
            typed += ("aggregate=median", "hardware.workers=5") if group == "attack" else ()
            for where in [VIRTUAL, PROCESSES] if group == "sync" else [PROCESSES if group == "strategy" else VIRTUAL]:
                yield (*where, *typed), False
    for line, resumes in [*((each, False) for each in MORE), *((each, True) for each in RESUMED)]:
        typed = tuple(line.split())
        yield (*(() if typed[0] == "hardware=virtual" else PROCESSES), *typed), resumes


def digest(overrides: tuple[str, ...], resumes: bool) -> dict[str, Any]:
    """Makes a run in a folder of its own; returns what it did, flat."""
    words = [each.split("=")[0] for each in overrides]
    small = [*SMALL, *([] if "model" in words or "experiment" in words else ["model.hidden=[16]"])]
    if NO_LIMIT & {*overrides}:
        small.remove("data.limit=96")
    if resumes:
        small = [*small[:-2], *small[-1:], "steps=4", "checkpoint.every_steps=2", "checkpoint.every=1"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("factors.txt").write_text("1 2 1\n3 1 2\n")
        try:
            engine.run([*small, *overrides], name="run", quiet=True)
            if resumes:
                engine.run(["steps=8"], resume="run", quiet=True)
        except Exception as error:
            kept = {"refused": type(error).__name__, "words": re.sub(r"/tmp/\w+", "", str(error))}
            return {**kept, "exit": getattr(error, "exit_code", 1)}
        finally:
            os.chdir("/")
        run = Path(folder) / "runs" / "run"
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found = flat("", json.loads((run / "summary.json").read_text()))
        found["files"] = sorted(
            str(each.relative_to(run)) for each in run.rglob("*") if "checkpoints" not in each.parts
        )
        found["records"] = dict(sorted(Counter(f"{each.get('kind')}: {sorted(each)}" for each in records).items()))
        races = not found[".modelled"] and any(f"sync={mode}" in overrides for mode in RACING)
        return {key: value for key, value in found.items() if key == "files" or not (races or key.endswith(UNKNOWN))}


def named(overrides: tuple[str, ...], resumes: bool) -> str:
    return f"{'resumed: ' if resumes else ''}{' '.join(overrides)}"


def flat(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {key: found for each, inner in value.items() for key, found in flat(f"{name}.{each}", inner).items()}


def recorded(known: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Makes all runs but the `known`; returns their digests by what was typed."""
    found = {}
    jobs = [job for job in runs() if named(*job) not in known]
    for i, (overrides, resumes) in enumerate(jobs, 1):
        name = named(overrides, resumes)
        found[name] = digest(overrides, resumes)
        print(f"{i} of {len(jobs)}: {name}: {found[name].get('words', 'trained')}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    what, file = sys.argv[1:]
    warnings.simplefilter("ignore")
    if what == "record":
        known = json.loads(Path(file).read_text()) if Path(file).exists() else {}
        found, again = recorded(known), recorded(known)
        kept = known | {
            name: {key: value for key, value in each.items() if again[name].get(key) == value}
            for name, each in found.items()
        }
        Path(file).write_text(json.dumps(kept, indent=1, sort_keys=True))
        trained = [each for each in kept.values() if "refused" not in each]
        alike = sum(".model_sha256" in each for each in trained)
        print(f"{len(kept)} runs, {len(trained)} of which trained, {alike} of which to the same weights twice")
        return 0
    before, found = json.loads(Path(file).read_text()), recorded()
    differ = [
        f"{name}: {key}: {json.dumps(value)[:200]} -> {json.dumps(found.get(name, {}).get(key))[:200]}"
        for name, kept in before.items()
        for key, value in kept.items()
        if json.loads(json.dumps(found.get(name, {}).get(key))) != value
    ]
    print(*differ, f"{len(before)} runs, {len(differ)} differences", sep="\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
