"""The bytes that a plan states are those of the run's row, to the last one, whatever the run's number of steps."""

import re
from itertools import product

import pytest
from choices import CHOICES, SYNCS, overrides_for

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.config.experiment import CONF
from paceline.engine.features import injected
from paceline.strategies.core.cost import World

SETTINGS = ["model.hidden=[16]", "batch_size=8", "tracking=none", "checkpoint.every=0", "evaluate.every=1000"]
MODEL = ["hardware=virtual", *SETTINGS]
OTHERS = ("none", "masked")  # masked goes with adapt=pruned alone: test_pruned.py
RULES = sorted(path.stem for path in (CONF / "compress").glob("*.yaml") if path.stem not in OTHERS)
PAIRS = [
    (sync, rule) for sync, rule in product(CHOICES["sync"], RULES) if "compress" in injected.accepted(type(SYNCS[sync]))
]
ALONE = ("dgc", "demo")  # rules whose momentum is in the workers
DGC = ["compress=dgc", "compress.warmup=5", "optimizer.momentum=0"]
FAST = [("streaming_diloco", "sparseloco")]
VARIES = ("threshold",)


def stated_and_sent(*overrides: str) -> tuple[float | None, float]:
    result = engine.run([*overrides], quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    return result.summary["predicted"]["bytes_per_step"], result.summary["wire"]["bytes_per_step"]


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("sync", "rule"), [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]
)
def test_with_each_compressor_under_each_mode(sync, rule):
    """Three workers, so that a ring's share is no whole number; eleven steps, which no period divides.

    Pairs that are refused have nothing to state.
    """
    overrides = [f"sync={sync}", f"compress={rule}", *overrides_for(sync), *MODEL, "hardware.workers=3", "steps=11"]
    overrides += ["optimizer.momentum=0"] if rule in ALONE else []
    overrides += ["compress.warmup=5"] if rule == "dgc" else []
    overrides += ["sync.backups=0"] if sync == "backup_workers" else []
    try:
        plan = engine.prepare(overrides).plan()
    except ConfigError as refused:
        assert refused.exit_code == 2
        return
    stated, sent = stated_and_sent(*overrides)
    assert plan.bytes_per_step() == stated == (None if rule in VARIES else sent)
    assert bool(plan.varies) == (rule in VARIES)


@pytest.mark.parametrize(
    "knobs",
    [
        ["sync=asp", "sync.push=2", "sync.fetch=3"],
        ["sync=asp", "partition=clusters"],
        pytest.param(["sync=ssp", "partition=clusters"], marks=pytest.mark.slow),
        pytest.param(["sync=fedavg", "partition=clusters"], marks=pytest.mark.slow),
        pytest.param(["sync=asp", *DGC], marks=pytest.mark.slow),
        pytest.param(["sync=ssp"], marks=pytest.mark.slow),
        pytest.param(["sync=ssp", "sync.staleness=null"], marks=pytest.mark.slow),
        pytest.param(["sync=parameter_server", "sync.servers=2"], marks=pytest.mark.slow),
        pytest.param(["sync=backup_workers", "sync.backups=0"], marks=pytest.mark.slow),
        pytest.param(["sync=fedavg", "sync.epochs=2"], marks=pytest.mark.slow),
        pytest.param(["sync=fedavg", "sync.fraction=0.5"], marks=pytest.mark.slow),
        pytest.param(["sync=fedbuff"], marks=pytest.mark.slow),
        pytest.param(["sync=fedbuff", "sync.steps=1"], marks=pytest.mark.slow),
        pytest.param(["sync=fedbuff", "sync.steps=3"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_where_some_have_no_samples_in_the_last_step_of_an_epoch(knobs):
    """Of 74 samples two are left for six workers after the first step of an epoch, and of the next."""
    data = ["data.limit=74", "hardware.workers=6", "batch_size=12", "steps=7"]
    plan = engine.prepare([*MODEL, *data, *knobs]).plan()
    assert plan.steps_per_epoch == 2
    stated, sent = stated_and_sent(*MODEL, *data, *knobs)
    assert stated == sent > 0


@pytest.mark.parametrize("sync", ["post_local_sgd", pytest.param("noloco", marks=pytest.mark.slow)])
def test_with_other_knobs_than_the_usual(sync):
    more = ["sync.switch_step=3"] if sync == "post_local_sgd" else ["hardware.workers=5"]
    stated, sent = stated_and_sent(f"sync={sync}", *MODEL, "steps=10", *more)
    assert stated == sent > 0


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [
        ["sync=diloco", "compress=sparseloco", "sync.outer_lr=1", "sync.outer_momentum=0"],
        ["sync=post_local_sgd", "sync.switch_step=6"],
        DGC,
    ],
    ids=" ".join,
)
def test_on_real_processes(knobs):
    stated, sent = stated_and_sent(*SETTINGS, *knobs, "steps=11", "hardware.threads=1", "hardware.workers=2")
    assert stated == sent > 0


def test_why_bytes_cannot_be_stated_is_said_in_words():
    plan = engine.prepare([*MODEL, "compress=threshold", "hardware.workers=2"]).plan()
    assert plan.bytes_per_step() is None and plan.varies.startswith(
        "compress=threshold: only entries that reach compress.tau=0.001"
    )
    dealt = engine.prepare([*MODEL, "sync=post_local_sgd", "partition=by_label", "hardware.workers=2"]).plan()
    assert dealt.bytes_per_step() is None and "once the data are dealt" in dealt.varies
    for sync in ("parameter_server", "asp", "ssp", "backup_workers"):  # a worker without samples pushes nothing
        asked = [*MODEL, f"sync={sync}", "partition=dirichlet", "hardware.workers=3", "steps=20"]
        pushes = engine.prepare(asked).plan()
        assert pushes.bytes_per_step() is None, sync
        assert pushes.varies.startswith("partition=dirichlet: in which steps a worker has samples"), sync
    late = engine.prepare([*MODEL, "sync=backup_workers", *DGC, "hardware.workers=3"]).plan()
    assert late.bytes_per_step() is None and late.varies.startswith("sync.backups: which steps a worker leaves out")
    assert plan.as_dict()["bytes_why"] == plan.varies and plan.varies in repr(plan)


@pytest.mark.parametrize(
    "knobs",
    [
        ["sync=fedavg", "sync.fraction=0.5"],
        pytest.param(["sync=fedavg", "client=scaffold"], marks=pytest.mark.slow),
        pytest.param(["sync=fedbuff"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_where_the_steps_of_a_round_are_not_known_its_bytes_are_told(knobs):
    """Of three rounds, with what is sent in each."""
    asked = [*MODEL, "partition=dirichlet", "hardware.workers=4", "epochs=3", "steps=null", *knobs]
    plan = engine.prepare(asked).plan()
    assert plan.bytes_per_step() is None
    told = re.search(r"a client sends ([\d,]+) bytes, and the server ([\d,]+) to it$", plan.varies)
    assert told is not None
    result = engine.run(asked, quiet=True)
    assert result is not None
    of_a_round = sum(int(each.replace(",", "")) for each in told.groups())
    assert result.summary["wire"]["total"] == 3 * (2 if "sync.fraction=0.5" in knobs else 4) * of_a_round


def test_where_the_steps_are_not_known_bytes_are_those_of_whole_rounds_and_a_note_says_so():
    overrides = [*MODEL, "sync=local_sgd", "hardware.workers=2"]
    whole, unknown = (engine.prepare([*overrides, *more]).plan() for more in (["steps=8"], ["partition=by_label"]))
    assert unknown.bytes_per_step() == whole.bytes_per_step()
    [note] = [text for text in unknown.notes if text not in whole.notes]
    assert note.startswith("sync.period=4: ") and "last round" in note


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("first", [None, 1, 3])
def test_what_happens_every_few_steps_is_counted_over_the_run(every, first):
    begins = every if first is None else first
    assert World(3).often(every, first) == 1 / every
    for steps in range(1, 12):
        happens = {n: sum(t >= begins and (t - begins) % every == 0 for t in range(1, n + 1)) for n in range(12)}
        world = World(3, steps=steps, busy=((steps, 2), (steps - 1, 1)))
        assert world.often(every, first) == happens[steps] / steps
        fewer = (2 * happens[steps] + happens[steps - 1]) / (3 * steps)
        assert world.often(every, first, with_samples=True) == pytest.approx(fewer, rel=1e-15)
