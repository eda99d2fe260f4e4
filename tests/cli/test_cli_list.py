"""`paceline list` against the files it speaks of."""

import json
import re
from itertools import product
from pathlib import Path

import pytest

from paceline.cli import list as listing
from paceline.cli.choices import CONF, defaults, groups
from paceline.cli.list_first import FIRST
from paceline.cli.pairs_view import page
from paceline.engine.features.order import FEATURES
from paceline.engine.features.pairs import Pair
from paceline.engine.planning.vocabulary import vocabulary
from paceline.strategies.core.terms import ONE_MODEL_AT_A_TIME, OWN_STEPS

CHOICES = [choice for choices in groups().values() for choice in choices]


def test_list_columns_is_the_glossary_of_the_tables(paceline) -> None:
    ended = paceline("list", "columns")
    assert ended.status == 0 and ended.out.splitlines()[0].split() == ["column", "name", "unit", "meaning"]
    assert any(line.startswith("to acc. s") and "target_accuracy" in line for line in ended.out.splitlines())


def test_every_file_of_a_group_is_a_choice() -> None:
    files = {path for path in CONF.rglob("*.yaml") if path.parent != CONF}
    assert {choice.path for choice in CHOICES} == files and len(files) > 15


def test_every_choice_says_what_it_is() -> None:
    assert not [
        f"{choice.group}={choice.name}: {choice.description}"
        for choice in CHOICES
        if not 10 < len(choice.description) < 130 or choice.description.startswith("@")
    ]


def test_all_groups_are_listed_with_the_default_starred(paceline) -> None:
    ended = paceline("list", "--all")
    assert ended.status == 0
    blocks = dict(block.split("=\n", 1) for block in ended.out.rstrip("\n").split("\n\n"))
    assert set(blocks) == set(groups())
    for group, block in blocks.items():
        starred = [line.split()[1] for line in block.splitlines() if line.startswith("*")]
        assert starred == [defaults()[group]] if group in defaults() else not starred


def test_one_screen_has_what_people_choose_first(paceline, here: Path) -> None:
    ended = paceline("list")
    lines = ended.out.splitlines()
    assert ended.status == 0 and len(lines) <= 24 and max(map(len, lines)) <= 80
    heads = [line.partition("=")[0] for line in lines if line[:1].isalpha() and "=  " in line]
    assert heads == ["strategy", "sync", "model", "data", "hardware"]
    for group in heads:
        assert f"* {defaults()[group]}" in ended.out
    words = set(re.split(r"[\s,]+", ended.out))
    assert groups().keys() - set(heads) <= words  # the other groups are named
    (here / "conf" / "model").mkdir(parents=True)
    (here / "conf" / "model" / "mine.yaml").write_text("# My own model\n_target_: mine.Model\n")
    assert "    mine  * mlp" in paceline("list", "--config-dir", "conf").out


def test_what_people_choose_first_is_there() -> None:
    known = groups()
    for group, names in FIRST.items():
        assert set(names) <= {choice.name for choice in known[group]} and defaults()[group] in names


def test_one_group_alone(paceline) -> None:
    ended = paceline("list", "sync")
    assert ended.out.startswith("sync=\n") and "asp " in ended.out and "strategy=" not in ended.out


def test_an_unknown_group_is_refused_with_the_nearest(paceline) -> None:
    ended = paceline("list", "strateg")
    assert (ended.status, ended.out) == (2, "")
    assert ended.last.startswith("strateg: there is no such group; did you mean strategy")


def test_a_users_own_choices_stand_beside_ours(paceline, here: Path) -> None:
    (here / "conf" / "model").mkdir(parents=True)
    (here / "conf" / "model" / "mine.yaml").write_text("# @package _global_\n# My own model\n_target_: mine.Model\n")
    ended = paceline("list", "model", "--config-dir", "conf")
    assert "  mine                        My own model\n" in ended.out and "* mlp" in ended.out
    assert "mine" not in paceline("list", "model").out
    assert paceline("list", "--config-dir", "nowhere").status == 2


def test_the_flags_of_train_may_be_given_and_nothing_is_imported(paceline, here: Path) -> None:
    (here / "mine.py").write_text("raise SystemExit('imported')")
    ended = paceline("list", "sync", "--config-dir", ".", "--allow-module", "mine")
    assert ended.status == 0 and ended.out.startswith("sync=\n")


@pytest.fixture(scope="module")
def every_pair() -> list[Pair]:
    return list(listing._pairs(None, ()))


@pytest.fixture
def pairs_at_once(every_pair: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding out takes seconds, and each test needs the same pairs."""
    monkeypatch.setattr(listing, "_pairs", lambda *_: iter(every_pair))


@pytest.mark.usefixtures("pairs_at_once")
def test_pairs_has_every_strategy_with_every_sync_mode_and_says_what_the_run_would(paceline) -> None:
    told = json.loads(paceline("list", "pairs", "--format", "json").out)
    names = {group: [choice.name for choice in groups()[group]] for group in ("strategy", "sync")}
    assert [(pair["strategy"], pair["sync"]) for pair in told] == list(product(names["strategy"], names["sync"]))
    pairs = {(pair["strategy"], pair["sync"]): pair for pair in told}
    assert pairs["pipeline", "hogwild"]["accepted"] and "each stage share" in pairs["pipeline", "hogwild"]["meaning"]
    assert not pairs["single", "asp"]["accepted"]
    refused = pairs["pipeline", "hogwild_locked"]
    ended = paceline("train", "strategy=pipeline", "sync=hogwild_locked", "--dry-run")
    assert not refused["accepted"] and ended.status == 2 and ended.last.startswith(f"{refused['meaning']}. Choose ")


@pytest.mark.budget(1)
def test_the_page_of_the_documentation_is_what_is_accepted(every_pair: list[Pair]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    write = (
        "docs/compatibility.md: differs from what the classes declare. "
        "Run `paceline list pairs --format markdown > docs/compatibility.md`."
    )
    assert text == page(every_pair, vocabulary()), write
    counted = f"{sum(pair.accepted for pair in every_pair)} of {len(every_pair)} pairs"
    assert counted in (Path(__file__).parents[2] / "README.md").read_text(), f"README.md: write '{counted}'"


def test_the_terms_have_what_each_feature_needs() -> None:
    needing = {who.partition("=")[0] for use in vocabulary() for who in use.needing}
    assert {feature.key for feature in FEATURES if "needs" in vars(feature)} <= needing
    uses = {use.term: use.needing for use in vocabulary()}
    assert "model=kmeans" in uses[OWN_STEPS], "which is asked once the model is known"
    assert "adapt=pufferfish" in uses[ONE_MODEL_AT_A_TIME], "of a model that changes in mid-run"


def test_a_page_is_of_pairs_alone(paceline) -> None:
    ended = paceline("list", "sync", "--format", "markdown")
    assert (ended.status, ended.last) == (2, "--format markdown: is for pairs alone. Choose --format table or json.")


@pytest.mark.usefixtures("pairs_at_once")
def test_pairs_says_which_choices_of_a_group_go_with_which_pairs(paceline) -> None:
    told = json.loads(paceline("list", "pairs", "--format", "json").out)
    takes = {(pair["strategy"], pair["sync"]): pair.get("takes", {}) for pair in told}
    everything = {choice.name for choice in groups()["compress"]} - {"none"}
    assert set(takes["data_parallel", "bsp"]["compress"]) == everything
    assert everything - set(takes["data_parallel", "diloco"]["compress"]) == {"demo", "dgc", "masked", "signsgd"}
    assert takes["tensor", "bsp"]["compress"] == ["bf16", "fp16", "threshold"]
    assert "compress" not in takes["data_parallel", "sparta"] and takes["torch_tensor", "bsp"] == {}
    lines = paceline("list", "pairs").out.splitlines()
    assert any(line.startswith("compress: all but demo, dgc, masked, signsgd with sync=diloco, ") for line in lines)
    few = "compress: bf16, fp16, threshold with sync=bsp, .* and strategy=hybrid, tensor"
    assert any(re.fullmatch(few, line) for line in lines)


@pytest.mark.slow
def test_pairs_is_a_table_with_a_line_for_each_meaning_and_takes_a_users_own(paceline, here: Path) -> None:
    (here / "conf" / "sync").mkdir(parents=True)
    (here / "conf" / "sync" / "mine.yaml").write_text((CONF / "sync" / "bsp.yaml").read_text())
    ended = paceline("list", "pairs", "--config-dir", "conf")
    table, meanings = ended.out.rstrip().split("\n\n")
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert rows["sync"] == [choice.name for choice in groups()["strategy"]]
    assert dict(zip(rows["sync"], rows["mine"], strict=True))["data_parallel"] == "yes"
    assert dict(zip(rows["sync"], rows["asp"], strict=True))["zero"] == "-"
    assert any(line.startswith("pipeline with hogwild: ") for line in meanings.splitlines())


def test_terms_says_what_the_words_of_messages_mean(paceline) -> None:
    told = {each["term"]: each["meaning"] for each in json.loads(paceline("list", "terms", "--format", "json").out)}
    assert {"worker", "server", "replica", "stage", "shard"} <= set(told)
    assert "cut over" in told["replica"] and paceline("list", "terms").out.startswith("worker ")


def test_of_one_group_each_choices_knobs_are_listed_with_their_defaults(paceline) -> None:
    lines = paceline("list", "compress").out.splitlines()
    topk = next(i for i, line in enumerate(lines) if line.split()[:1] == ["topk"])
    knobs = next(line for line in lines[topk:] if "ratio" in line).split()
    assert knobs == ["compress.ratio=0.01", "compress.error_feedback=true"]
    assert "compress.ratio" not in paceline("list", "--all").out
