"""Whole runs with compress=...: what leaves is what the plan states, and what was learnt; on both fabrics."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from paceline.engine import prepare, run
from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.config import hints
from paceline.engine.config.experiment import CONF
from paceline.engine.config.hints import elsewhere

pytestmark = pytest.mark.dist
TINY = ("tracking=none", "model.hidden=[16]", "batch_size=8", "checkpoint.every=0", "data.limit=96", "steps=12")
MODES = {
    "bsp": (),
    "parameter_server": (),
    "asp": (),
    "ssp": (),
    "backup_workers": (),
    "easgd": (),
    "local_sgd": (),
    "diloco": (),
    "gossip": ("sync.consensus_step=0.5",),
    "fedavg": (),
    "fedbuff": (),
}
TENTH = ("compress=topk", "compress.ratio=0.1")
HOW = {
    "topk": ("compress=topk", "compress.ratio=0.05"),
    "bf16": ("compress=bf16",),
    **{name: (f"compress={name}",) for name in ("fp16", "qsgd", "terngrad", "onebit", "ef_signsgd", "signsgd")},
    "powersgd": ("compress=powersgd", "compress.rank=2"),
    "atomo": ("compress=atomo", "compress.triples=2"),
    "randomk": ("compress=randomk",),
    "sparseloco": ("compress=sparseloco", "compress.chunk=256"),
    "dgc": ("compress=dgc", "compress.clip=1", "optimizer.momentum=0"),
    "demo": ("compress=demo", "compress.k=4", "optimizer.momentum=0"),
}
GRADIENTS = ("bsp", "parameter_server", "asp", "ssp", "backup_workers")
OF_GRADIENTS = {"signsgd": GRADIENTS, "dgc": GRADIENTS, "demo": GRADIENTS}


@pytest.fixture(autouse=True)
def here(fork_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def summary_of(*overrides: str, **how: Any) -> dict[str, Any]:
    result = run([*TINY, *overrides], quiet=True, **how)
    assert result is not None and result.summary["status"] == "completed"
    return result.summary


def plain_of(overrides: tuple[str, ...]) -> list[str]:
    """The same without compression."""
    return [
        *TINY,
        *(word for word in overrides if not word.startswith(("compress", "sync.compress", "sync.consensus_step"))),
    ]


def check_bytes(*overrides: str) -> None:
    summary, plain = summary_of(*overrides), prepare(plain_of(overrides)).plan().bytes_per_step()
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])
    assert plain is None or summary["wire"]["bytes_per_step"] < plain
    assert summary["memory"]["buffers"] == summary["predicted"]["memory"]["buffers"]


def test_bytes_of_messages_that_vary_are_counted_and_not_stated() -> None:
    how = ("hardware=virtual", "hardware.workers=3", "compress=threshold")
    summary = summary_of(*how)
    assert summary["wire"]["bytes_per_step"] > 0
    assert prepare([*TINY, *how]).plan().bytes_per_step() is None
    assert summary["memory"]["buffers"] == summary["predicted"]["memory"]["buffers"]


def is_fast(sync: str, how: str) -> bool:
    return how == "topk" or sync == "bsp" or (sync, how) in (("fedavg", "bf16"), ("gossip", "onebit"))


CASES = [
    pytest.param(sync, how, marks=[] if is_fast(sync, how) else pytest.mark.slow)
    for how in HOW
    for sync in OF_GRADIENTS.get(how, MODES)
]


@pytest.mark.parametrize(("sync", "how"), CASES)
def test_on_the_virtual_cluster_as_many_bytes_leave_as_the_plan_states(sync: str, how: str) -> None:
    check_bytes(f"sync={sync}", "hardware=virtual", "hardware.workers=4", *MODES[sync], *HOW[how])


@pytest.mark.parametrize("how", ["topk", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "sync", [sync if sync in ("bsp", "asp") else pytest.param(sync, marks=pytest.mark.slow) for sync in MODES]
)
def test_on_processes_as_many_bytes_leave_as_the_plan_states(sync: str, how: str) -> None:
    check_bytes(f"sync={sync}", "hardware.workers=3", "hardware.threads=1", *MODES[sync], *HOW[how])


RESUMED = [
    "bsp",
    *(pytest.param(sync, marks=pytest.mark.slow) for sync in ("parameter_server", "local_sgd", "diloco", "gossip")),
]


DOUBLE = ("sync=parameter_server", "sync.compress_answers=true", "sync.servers=2")


@pytest.mark.parametrize("how", ["topk", pytest.param("bf16", marks=pytest.mark.slow)])
def test_with_double_compression_as_many_bytes_leave_as_the_plan_states(how: str) -> None:
    check_bytes(*DOUBLE, "hardware=virtual", "hardware.workers=4", *HOW[how])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["topk", "ef_signsgd"])
def test_a_resumed_run_has_what_servers_have_not_told_yet(how: str) -> None:
    check_resumed("parameter_server", how, *DOUBLE[1:])


@pytest.mark.slow
@pytest.mark.parametrize("sync", RESUMED)
def test_a_resumed_run_has_kept_what_each_replica_left_out(sync: str) -> None:
    check_resumed(sync, "topk")


@pytest.mark.slow
@pytest.mark.parametrize("how", [how for how in HOW if how != "topk"])
def test_a_resumed_run_goes_on_with_what_its_rule_remembers_and_draws(how: str) -> None:
    check_resumed("bsp", how)


def check_resumed(sync: str, how: str, *more: str) -> None:
    asked = (f"sync={sync}", *MODES[sync], *HOW[how], *more, "hardware.workers=2", "hardware.threads=1")
    whole = summary_of(*asked, "name=whole")
    summary_of(*asked, "checkpoint.every_steps=5", "name=half", "steps=7")
    result = run(["steps=12"], resume="half", quiet=True)
    assert result is not None and whole["steps"] == result.summary["steps"] == 12
    weights = [safetensors.torch.load_file(Path("runs", name, "model.safetensors")) for name in ("whole", "half")]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("sync=easgd_async",), r"compress=topk: sync=easgd_async takes no compress. Choose sync=easgd, bsp"),
        (("strategy=torch_ddp",), "compress=topk: strategy=torch_ddp owns its update, and takes no compress"),
        (("sync.shard=optimizer",), "sync.shard=optimizer: gives a replica the sum of its own shard alone,"),
        (("sync=gossip_matching",), "sync.topology=matching: changes the neighbours, and with compress"),
        (("sync=post_local_sgd",), "sync.switch_step=40: exchanges gradients before the switch and"),
        (("compress.ratio=0",), "compress.ratio=0: must be greater than 0"),
        (("compress.ratio=1.5",), "compress.ratio=1.5: must be less than or equal to 1"),
        (("compress.ration=0.5",), "compress.ration"),
        (("compress=qsgd", "compress.bits=3"), "compress.bits=3: must be 2, 4 or 8"),
        (("compress=qsgd", "compress.bucket=0"), "compress.bucket=0: must be greater than or equal to 1"),
        (("compress=terngrad", "compress.clip=0"), "compress.clip=0: must be greater than 0"),
        (
            ("compress=terngrad", "compress.error_feedback=true"),
            "compress.error_feedback: there is no such key; compress=terngrad has none: its messages are unbiased, .* "
            "would grow without end; compress=bf16, .* have compress.error_feedback",
        ),
        (
            ("compress=terngrad", "+compress.error_feedback=true"),
            "compress.error_feedback: TernGrad has no such parameter; compress=terngrad has none: its messages are",
        ),
        (("compress=onebit", "compress.error_feedback=3"), "compress.error_feedback=3"),
        (("compress=powersgd", "compress.rank=0"), "compress.rank=0: must be greater than or equal to 1"),
        (("compress=powersgd", "compress.rank=17"), r"compress.rank=17: must be at most 16, .* matrix \[16, 64\]"),
        (("compress=randomk", "compress.ratio=0"), "compress.ratio=0: must be greater than 0"),
        (("compress=randomk", "compress.ratio=2"), "compress.ratio=2: must be less than or equal to 1"),
        (("compress=threshold", "compress.tau=0"), "compress.tau=0: must be greater than 0"),
        (("compress=threshold", "compress.tau=-1"), "compress.tau=-1: must be greater than 0"),
        (
            ("compress=dgc",),
            "compress=dgc: .*momentum is in what they send.*SGD would add its own. Choose optimizer=sgd",
        ),
        (("compress=dgc", "compress.momentum=1"), "compress.momentum=1: must be less than 1"),
        (("compress=dgc", "compress.warmup=-1"), "compress.warmup=-1: must be greater than or equal to 0"),
        (
            ("compress=dgc", "compress.error_feedback=true"),
            "compress=dgc has none: what is not sent always stays in each",
        ),
        (("compress=sparseloco", "compress.beta=1"), "compress.beta=1: must be less than 1"),
        (("compress=sparseloco", "compress.beta=-0.1"), "compress.beta=-0.1: must be greater than or equal to 0"),
        (("compress=sparseloco", "compress.ratio=1.5"), "compress.ratio=1.5: must be less than or equal to 1"),
        (("compress=demo", "optimizer=adam"), "Adam would add its own. Choose optimizer=sgd and optimizer.momentum=0"),
        (("compress=demo", "compress.beta=1"), "compress.beta=1: must be less than 1"),
        (("compress=demo", "compress.k=0"), "compress.k=0: must be greater than or equal to 1"),
        (
            ("compress=demo", "sync=local_sgd", "optimizer.momentum=0"),
            "sync=local_sgd: sends changes of weights, and compress=demo is a rule",
        ),
        (
            ("compress=dgc", "sync=parameter_server", "sync.compress_answers=true", "optimizer.momentum=0"),
            "sync.compress_answers=true: has servers answer with changes of",
        ),
        (("compress=atomo", "compress.triples=0"), "compress.triples=0: must be greater than or equal to 1"),
        (("compress=atomo", "compress.triples=17"), r"compress.triples=17: must be at most 16, .*\[16, 64\]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_compressed_is_refused_by_name(overrides: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, "compress=topk", "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


def test_each_rule_has_error_feedback_or_a_reason_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "_read", cache(hints._read))  # of all YAML files, for each rule
    files = {path.stem: path.read_text() for path in (CONF / "compress").glob("*.yaml")}
    reasons = {name: elsewhere("compress.error_feedback", choice=name) for name in files}
    usual = elsewhere("compress.error_feedback")
    without = {name for name, reason in reasons.items() if reason != usual}
    for name in sorted(without ^ {name for name, text in files.items() if "\nerror_feedback:" not in text}):
        what = "has error_feedback and a reason to have none" if name in without else "has no error_feedback"
        fix = "Remove its reason from" if name in without else "Add the key to its YAML file, or a reason to"
        pytest.fail(f"compress={name}: {what}. {fix} _WITHOUT['compress.error_feedback'] of engine/config/hints.py.")
    assert all(f"compress={name} has none: " in reasons[name] and reasons[name].endswith(usual) for name in without)


def test_a_matrix_below_the_rank_travels_whole_beside_others_in_a_bucket_of_its_own() -> None:
    """The last layer, [10, 2600], is alone in its bucket: the layer before it is larger than one."""
    large = ("model.hidden=[2600,2600]", "compress=powersgd", "compress.rank=16", "hardware.workers=2")
    plan = prepare([*TINY, *large]).plan()
    sent, whole = plan.bytes_per_step(), 4 * (10 * 2600 + 10 + 2600 * 2)
    assert sent is not None and sent == whole + 4 * 16 * (64 + 2600 + 2600 + 2600)


@pytest.mark.parametrize("sync", ["local_sgd", "diloco", "fedavg", "gossip", "easgd"])
def test_a_vote_is_refused_by_name_where_differences_of_weights_travel(sync: str) -> None:
    says = f"sync={sync}: sends changes of weights, and compress=signsgd is a rule for gradients. Choose compress=none"
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, "compress=signsgd", "hardware.workers=2", f"sync={sync}"]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("compress=qsgd", "hardware.workers=8"), "messages go from everyone to everyone, and with 8 replicas must be"),
        (("compress=powersgd", "compress.rank=16", "hardware.workers=2"), "nothing of this model becomes shorter"),
        (("compress=randomk", "compress.ratio=1", "hardware.workers=2"), "nothing of this model becomes shorter"),
        (("compress=randomk", "hardware.workers=1"), "one replica alone sends nothing"),
        (
            ("compress=topk", "compress.ratio=1e-9", "hardware.workers=2"),
            "compress.ratio=1e-09: less than one of the 1,210 entries of a message; one is sent all the same",
        ),
        (
            ("compress=sparseloco", "compress.ratio=0.001", "compress.chunk=64", "sync=diloco", "hardware.workers=2"),
            "compress.ratio=0.001: less than one of the 64 entries of a chunk; one is sent all the same",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_plan_says_where_a_rule_saves_nothing_or_sends_more_than_asked_and_why(
    overrides: tuple[str, ...], says: str
) -> None:
    notes = [note for note in prepare([*TINY, *overrides]).plan().notes if note.startswith("compress")]
    assert len(notes) == 1 and says in notes[0]


@pytest.mark.parametrize("where", ["virtual", pytest.param("local", marks=pytest.mark.slow)])
def test_a_run_whose_messages_would_hold_nan_ends_as_one_that_diverged(where: str) -> None:
    with pytest.raises(WorkerFailedError, match=r"worker \d diverged: of the .* numbers .* are NaN") as failed:
        run([*TINY, "compress=qsgd", "optimizer.lr=1e30", f"hardware={where}", "hardware.workers=2"], quiet=True)
    assert failed.value.exit_code == 6


@pytest.mark.slow
@pytest.mark.parametrize("sync", MODES)
def test_digits_are_learnt_with_a_tenth_of_the_entries(sync: str) -> None:
    asked = ("tracking=none", "hardware=virtual", "hardware.workers=4", "epochs=12", f"sync={sync}")
    result = run([*asked, *MODES[sync], *TENTH], quiet=True)
    assert result is not None and result.summary["accuracy"] > 0.9
