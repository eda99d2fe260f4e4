"""Overrides become one experiment, or are refused with the key, the value, the rule and the nearest names."""

import os
import re
import shlex
from pathlib import Path

import pytest
from short_runs import HERE
from stored_configs import from_yaml, to_yaml

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.conf.groups import CONF
from paceline.conf.words import CHOICES, KEYS
from paceline.engine.config.compose import compose
from paceline.engine.config.resumed import override_stored
from paceline.tracking.errors import RunNameError, TrackingConfigError
from paceline.tracking.values import flat


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        engine.prepare(overrides).plan()
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_without_overrides_it_is_the_default_experiment() -> None:
    experiment = compose([])
    assert (experiment.strategy.name, experiment.sync.name) == ("data_parallel", "bsp")
    assert experiment.model.knobs == {"hidden": [256, 128]}
    assert experiment.model.target == "paceline.tasks.models.mlp.MLP"


def test_an_experiment_preset_chooses_and_overrides_win_over_it() -> None:
    experiment = compose(["experiment=fashion_cnn", "epochs=2"])
    assert (experiment.model.name, experiment.data.name, experiment.epochs) == ("cnn", "fashion_mnist", 2)
    assert experiment.target_accuracy == 0.88


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            "experiment=svm optimizer=adam",
            "optimizer.momentum, optimizer.nesterov: set by experiment=svm, and optimizer=adam has no such keys; take "
            "them out (~optimizer.momentum ~optimizer.nesterov), or keep optimizer=sgd",
        ),
        ("optimizer=pegasos experiment=svm", "optimizer.lr, optimizer.momentum, optimizer.nesterov: set by"),
        (
            "experiment=federated sync=bsp",
            "sync.epochs: set by experiment=federated, and sync=bsp has no such key; take it out (~sync.epochs), or "
            "keep sync=fedavg",
        ),
        ("experiment=stragglers_scaling hardware=local", "hardware.overhead: set by experiment=stragglers_scaling"),
    ],
)
def test_what_a_preset_sets_of_a_choice_that_is_not_made_is_refused_by_its_name(overrides: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(overrides.split())
    assert str(caught.value).startswith(says)


def test_what_a_preset_sets_goes_on_where_the_other_choice_has_it_or_it_is_taken_out() -> None:
    free = compose(["experiment=svm", "optimizer=sgd_free_biases"]).optimizer
    assert (free.name, free.knobs["lr"], free.knobs["momentum"]) == ("sgd_free_biases", 0.01, 0.95)
    adam = compose(["experiment=svm", "optimizer=adam", "~optimizer.momentum", "~optimizer.nesterov"]).optimizer
    assert adam.name == "adam" and adam.knobs["lr"] == 0.01 and "momentum" not in adam.knobs
    assert compose(["experiment=svm", "optimizer=sgd"]) == compose(["experiment=svm"])


def test_a_key_that_no_choice_of_ours_has_is_left_to_the_class(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults: [{override /optimizer: adam}]\noptimizer: {amsgrad: true}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    assert compose(["experiment=mine", "optimizer=adamw"], tmp_path).optimizer.knobs["amsgrad"] is True
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "own.yaml").write_text("_target_: torch.optim.RMSprop\n")
    assert compose(["experiment=svm", "optimizer=own"], tmp_path).optimizer.knobs["momentum"] == 0.95
    with pytest.raises(ConfigError, match=r"optimizer.betas: set by experiment=mine, and optimizer=sgd has no such"):
        (tmp_path / "experiment" / "mine.yaml").write_text(text.replace("amsgrad: true", "betas: [0.9, 0.9]"))
        compose(["experiment=mine", "optimizer=sgd"], tmp_path)


def test_a_users_directory_adds_choices_beside_ours() -> None:
    experiment = compose(["strategy=sabotage", "strategy.at=7", "sync=asp"], HERE / "conf")
    assert experiment.strategy.target == "saboteur.Sabotage"
    assert experiment.strategy.knobs["at"] == 7


@pytest.mark.parametrize("text", ["# Mine\n# @package _global_\nsteps: 3\n", "defaults:\n  - override /sync: asp\n"])
def test_a_preset_whose_first_line_is_not_its_package_is_told_so(text: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match=r"^experiment.*Begin the preset's file with the line `# @package _global_`.$"
    ):
        compose(["experiment=mine"], tmp_path)


@pytest.mark.parametrize("group", ["sync", "launcher"])
def test_the_name_of_a_choice_is_told_as_the_choice(group: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{group}.name: there is no such key; it is {group}=mine"):
        compose([f"{group}.name=mine"])


def test_a_users_directory_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="--config-dir /nowhere: there is no such directory"):
        compose([], Path("/nowhere"))


@pytest.mark.parametrize(
    ("override", "path", "hint"),
    [
        ("strateg=single", "strateg: there is no such key", "did you mean strategy"),
        ("optimiser=adam", "optimiser: there is no such key", "did you mean optimizer"),
        ("seeed=1", "seeed: there is no such key", "did you mean seed"),
        ("sync=bps", "sync=bps: there is no such choice", "did you mean bsp"),
        ("model=cn", "model=cn: there is no such choice", "valid: alexnet, cnn, gpt"),
        (
            "model=mine.net.Net",
            "model=mine.net.Net: there is no",
            "is 'model={_target_:mine.net.Net}'",
        ),
        ("experiment=nope", "experiment=nope: there is no such choice", "fashion_cnn"),
        ("optimizer.lrr=1", "optimizer.lrr: there is no such key", "did you mean optimizer.lr"),
        ("hardware.worker=2", "hardware.worker: there is no such key", "did you mean hardware.workers"),
        ("epochs.foo=1", "epochs.foo: there is no such key", "epochs"),
        (
            "strategy.stages=2",
            "strategy.stages: there is no such key",
            "strategy=deepspeed_pipeline, strategy=hybrid, strategy=pipeline (and 1 more) have strategy.stages",
        ),
        ("partition.nosuch=2", "partition.nosuch: there is no such key", "partition has none"),
        ("strategy.nosuch=2", "strategy.nosuch: there is no such key", "valid: strategy.batch_norm"),
        ("optimizer.clip=1", "optimizer.clip: there is no such key", "clip=none, norm or value chooses it"),
        ("precision=bf17", "precision=bf17: there is no such choice", "did you mean bf16"),
        ("strategy.precision=bf16", "strategy.precision: there is no such key", "precision=bf16 chooses it"),
        ("network=infiniband", "network: there is no such key", "hardware/network=infiniband chooses it"),
        ("workers=4", "workers: there is no such key", "it is hardware.workers=4"),
        ("checkpoint.lr=1", "checkpoint.lr: there is no such key", "it is optimizer.lr=1"),
        ("+lr=0.2", "lr: there is no such key", "it is optimizer.lr=..."),
        ("model.lr=1", "model.lr: there is no such key", "it is optimizer.lr=1 (model=mlp has hidden)"),
        ("dataset=mnist", "dataset: there is no such key", "it is data=mnist"),
        ("fp16=true", "fp16: there is no such key", "precision=fp16 chooses it"),
        ("optimizer.learning_rate=1", "optimizer.learning_rate: there is no such key", "it is optimizer.lr=1"),
        ("+new_key=1", "new_key: there is no such key", "valid: accumulate"),
        ("++new_key=1", "new_key: there is no such key", "valid: accumulate"),
        ("+hardware.foo=1", "hardware.foo: there is no such key", ""),
        ("+optimizer.momentun=1", "optimizer.momentun: SGD has no such parameter", "did you mean momentum"),
        (
            "optimizer._target_=torch.optim.Adagrad",
            "optimizer.momentum: Adagrad has no such parameter",
            "optimizer=sgd has it. Choose optimizer={_target_: torch.optim.Adagrad}, which replaces it",
        ),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest(override: str, path: str, hint: str) -> None:
    message = refusal(override)
    assert message.startswith(path)
    assert hint in message


def test_what_other_tools_call_a_key_is_a_key_or_a_choice_here() -> None:
    """A word here must not be a key itself, of which it would hide the hint."""
    plain, shipped = compose([]).model_dump(), {f"{file.parent.name}={file.stem}" for file in CONF.rglob("*.yaml")}
    known = [*flat(plain, "."), *plain]
    assert not {*KEYS} & {*known}
    for own in [*KEYS.values(), *CHOICES.values()]:
        *choices, last = own.split()
        choices += [last] if "=" in last else []
        assert {*choices} <= shipped, own
        if "=" not in last:
            keys = [*flat(compose(choices).model_dump(), "."), *plain] if choices else known
            group, _, knob = last.partition(".")
            assert last in keys or f"{group}.knobs.{knob}" in keys, own


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tracking.tags={a: b}", ": must be a list. Choose one, such as tracking.tags=[a,b]."),
        ("model.hidden={0: 3}", ": must be a list. Choose one, such as model.hidden=[256,128]."),
        ("+tracking.tags={}", ": must be a list. Choose one"),
        ("tracking.tags.a=b", ": tracking.tags is a list of 0. Write all of its entries, such as tracking.tags=[a,b]."),
        ("model.hidden.2=3", ": model.hidden is a list of 2. Write all of its entries"),
        ("~model.hidden.0", ": model.hidden is a list of 2. Write all of its entries"),
        ("~hardware.workers", ": nothing is there to delete: hardware.workers is null or no key. Leave it out."),
        ("checkpoint=[1]", ": is a section. Set one of its keys: checkpoint.every,"),
        ("evaluate=3", ": is a section. Set one of its keys: evaluate.every,"),
        ("tracking.tags=[a] ~tracking.tags.0", ": tracking.tags is a list of 1."),
    ],
)
def test_a_value_of_another_form_than_its_key_is_refused_with_an_example(override: str, message: str) -> None:
    told = [override] if "{" in override else override.split()
    assert refusal(*told).startswith(f"{told[-1]}{message}")


def test_a_mapping_for_a_section_is_refused_by_the_key_that_is_not_there() -> None:
    assert refusal("evaluate={evry: 3}").startswith("evaluate.evry: there is no such key; did you mean evaluate.every")
    assert refusal("sync._target_=[a]").startswith("sync._target_=['a']: must be module.Class")
    assert compose(["checkpoint={every: 3}"]).checkpoint.every == 3
    assert compose(["model.hidden.0=3"]).model.knobs["hidden"] == [3, 128]


@pytest.mark.parametrize("override", ["warmup=3", "+warmup=3", "++warmup=3", "~warmup"])
def test_a_key_that_was_renamed_is_refused_with_its_new_name(override: str) -> None:
    assert refusal(override) == f"{override}: is called measure.after now"


def test_a_stored_run_and_a_preset_with_a_renamed_key_are_told_its_new_name(tmp_path: Path) -> None:
    stored = to_yaml(compose([])).replace("measure:\n  after: 10\n", "warmup: 10\n")
    with pytest.raises(ConfigError, match=r"warmup: is called measure\.after now"):
        from_yaml(stored)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nwarmup: 3\n")
    with pytest.raises(ConfigError, match=r"warmup: is called measure\.after now"):
        compose(["experiment=mine"], tmp_path)
    assert compose(["measure.after=3"]).measure.after == 3


def test_the_nearest_names_are_those_of_the_choice_that_was_made() -> None:
    assert "did you mean strategy.stages" in refusal("strategy=pipeline", "strategy.stags=3")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs=two", "epochs='two': must be a valid integer"),
        ("epochs=1.5", "epochs=1.5: must be a valid integer"),
        ("epochs=true", "epochs=True: must be a valid integer"),
        ("epochs=null", "epochs=None: must be a valid integer"),
        ("epochs=0", "epochs=0: must be greater than or equal to 1"),
        ("batch_size=-1", "batch_size=-1: must be greater than or equal to 1"),
        ("seed=-1", "seed=-1: must be greater than or equal to 0"),
        ("seed=9223372036854775808", "seed=9223372036854775808: must be less than or equal to 9223372036854775807"),
        ("target_accuracy=1.5", "target_accuracy=1.5: must be less than or equal to 1"),
        ("hardware.workers=0", "hardware.workers=0: must be greater than or equal to 1"),
        ("hardware.timeout=0", "hardware.timeout=0: must be greater than 0"),
        ("hardware.timeout=inf", "hardware.timeout=inf: must be a finite number"),
        ("hardware.port=70000", "hardware.port=70000: must be less than or equal to 65535"),
        ("hardware.device=gpu", "hardware.device='gpu': must be 'auto', 'cpu' or 'cuda'"),
        ("checkpoint.keep=0", "checkpoint.keep=0: must be greater than or equal to 1"),
        ("optimizer.lr=fast", "optimizer.lr='fast': must be a valid number"),
        ("optimizer.lr=nan", "optimizer.lr=nan: must be a finite number"),
        ("optimizer.lr=-1", "optimizer.lr=-1: must be greater than or equal to 0"),
        ("optimizer.nesterov=1", "optimizer.nesterov=1: must be true or false"),
        ("model.hidden=3", "model.hidden=3: must be a list. Choose model.hidden=[3]."),
        ("model.hidden=[8,a]", "model.hidden.1='a': must be a valid integer"),
        ("model.hidden=[0]", "model.hidden.0=0: must be greater than or equal to 1"),
        ("sync.bucket_mb=0", "sync.bucket_mb=0: must be greater than 0"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_the_rule(override: str, message: str) -> None:
    assert refusal(override) == message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("hydra.run.dir=/x", "hydra's own settings are not part of an experiment"),
        ("+hydra.foo=1", "hydra's own settings are not part of an experiment"),
        ("hydra/launcher=basic", "hydra's own settings are not part of an experiment"),
        ("hydra.searchpath=[file:///x]", "hydra's own settings are not part of an experiment"),
        ("epochs=1,2", "is a sweep over several values"),
        ("model=mlp,cnn", "is a sweep over several values"),
        ("epochs=range(1,3)", "is a sweep over several values"),
        ("epochs=interval(1,3)", "is a sweep over several values"),
        ("epochs", "is not an override"),
        ("=3", "has no key"),
        ("--foo", "is not an override"),
        ("epochs=[", "is not an override"),
        ("~epochs", "epochs: is missing"),
        ("~checkpoint", "checkpoint: is missing"),
        ("~model", "~model: a run cannot be without it. Choose model=NAME; see: paceline list model"),
        ("~callbacks", "~callbacks: a run cannot be without it. Choose callbacks=[]"),
        ("sync@x=bsp", "sync@x=bsp: no run has a section 'x'. Choose sync=bsp."),
        ("sync@=bsp", "sync@=bsp: no run has a section ''. Choose sync=bsp."),
        ("+sync@x=bsp", "+sync@x=bsp: no run has a section 'x'. Choose sync=bsp."),
        ("sync@optimizer=bsp", "sync@optimizer: the section 'optimizer' has no choice of sync. Choose sync=NAME."),
        ("~sync@optimizer", "sync@optimizer: the section 'optimizer' has no choice of sync. Choose sync=NAME."),
        ("seed@x=1", "seed@x=1: @ is for groups, and seed is a key. Choose seed=1."),
        ("++sync=bsp", "++sync=bsp: + is for keys that are not there yet. Choose sync=bsp."),
        ("model=null", "model=null: "),
        ("model=3", "model=3: "),
        ("sync=[bsp]", "sync: takes one choice"),
        ("experiment=[kmeans,pca]", "experiment=[kmeans,pca]: takes one preset"),
        ("+strategy=single", "+strategy=single: + is for keys that are not there yet. Choose strategy=single."),
        ("seed=${nope}", "Interpolation key 'nope' not found"),
        ("name='a${b'", "name='a${b': is a broken interpolation. Write ${KEY} with"),
        ('name="${\\"x\\"}"', "name='${\"x\"}': is a broken interpolation"),
        ("checkpoint={keep:'${'} model=mlp", "checkpoint={keep:'${'}: keep='${': is a broken interpolation"),
        ("callbacks=['${a']", "callbacks=['${a']: "),
        ("seed=???", "seed: has no default. Choose a value: seed=VALUE"),
        ("stragglers=trace", "stragglers.path: has no default. Choose a value: stragglers.path=VALUE"),
        ("strategy=torch_ddp sync=asp", "strategy=torch_ddp: owns its update, and sync=asp is another rule"),
    ],
)
def test_what_describes_no_single_run_is_refused(override: str, words: str) -> None:
    assert words in refusal(*override.split())


def test_a_knob_may_be_deleted_where_its_class_has_a_default() -> None:
    prepared = engine.prepare(["~optimizer.momentum"])
    assert "momentum" not in prepared.experiment.optimizer.knobs
    assert prepared.plan().peak_memory()["optimizer"] == 0


@pytest.mark.parametrize("name", ["a/b", "..", "", "x" * 65])
def test_a_name_that_cannot_be_a_directory_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(RunNameError) as caught:
        engine.prepare([f"name='{name}'"])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("tracking", ["none", "wandb"])
def test_an_unknown_tracking_key_is_refused(tracking: str) -> None:
    with pytest.raises(TrackingConfigError, match=r"tracking\.projekt: there is no such key") as caught:
        engine.prepare([f"tracking={tracking}", "+tracking.projekt=x"])
    assert caught.value.exit_code == 2


class TestAResumedRun:
    def test_may_change_how_long_and_where_it_runs(self) -> None:
        changed = override_stored(
            compose(["sync=asp"]), ["epochs=9", "hardware.timeout=5", "checkpoint.keep=3", "tracking.wandb=false"]
        )
        assert (changed.epochs, changed.hardware.timeout, changed.checkpoint.keep) == (9, 5, 3)
        assert changed.tracking["wandb"] is False
        assert changed.sync == compose(["sync=asp"]).sync

    def test_may_be_tracked_by_another_choice(self) -> None:
        assert override_stored(compose([]), ["tracking=none"]).tracking == {"wandb": False}

    @pytest.mark.parametrize("override", ["seed=1", "batch_size=8", "model=cnn", "sync.bucket_mb=1", "optimizer.lr=1"])
    def test_may_not_change_what_it_computes(self, override: str) -> None:
        with pytest.raises(ConfigError, match="a resumed run goes on as it was; only epochs"):
            override_stored(compose([]), [override])

    @pytest.mark.parametrize("hardware", ["local", "virtual"])
    def test_keeps_its_hardware_of_which_keys_may_change(self, hardware: str) -> None:
        with pytest.raises(ConfigError, match=r"keeps its choice of hardware; .* hardware\.timeout=\.\.\."):
            override_stored(compose([]), [f"hardware={hardware}"])

    def test_takes_keys_of_a_new_strategy_wherever_they_stand(self) -> None:
        for stored in ([], ["strategy=pipeline"]):
            changed = override_stored(compose(stored), ["strategy.stages=3", "strategy=pipeline"])
            assert changed.strategy.knobs["stages"] == 3

    @pytest.mark.parametrize("override", ["hardware.nope=1", "epochs.nope=1", "tracking.nope=1", "strategy.nope=1"])
    def test_has_no_new_keys(self, override: str) -> None:
        key = re.escape(override.removesuffix("=1"))
        with pytest.raises(ConfigError, match=f"^{key}: there is no such key in the stored run"):
            override_stored(compose([]), [override])

    @pytest.mark.parametrize("override", ["epochs=0", "hardware.timeout=soon", "epochs=1,2", "hydra.x=1"])
    def test_has_its_new_values_checked(self, override: str) -> None:
        with pytest.raises(ConfigError):
            override_stored(compose([]), [override])


@pytest.mark.parametrize(
    "overrides",
    [
        ["tracking.project=${oc.env:MY_SECRET}"],
        ["name=env", "tracking.project='${oc.${name}:MY_SECRET}'"],
        ["tracking.group=env", "tracking.project='${oc.${.group}:MY_SECRET}'"],
        ["name=oc", "tracking.group=env", "tracking.project='${${name}.${tracking.group}:MY_SECRET}'"],
        ["tracking.group=env", "tracking.project='${oc.decode:\"\\${oc.${tracking.group}:MY_SECRET}\"}'"],
        ["name=env", "tracking.tags=['${oc.${name}:MY_SECRET}']"],
        ["name='${.${oc.env:MY_SECRET}}'"],
        ["model='${oc.env:MY_SECRET}'"],
        ["tracking.project='${oc.select:seed}'"],
    ],
    ids=["plain", "computed", "relative", "in parts", "decoded", "in a list", "as a key", "as a choice", "another one"],
)
def test_a_configuration_calls_no_resolver_however_it_is_named(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    words = refusal(*overrides)
    assert overrides[-1].partition("=")[0] in words and "hunter2" not in words and "calls the resolver oc." in words


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("experiment", "# @package _global_\ndefaults:\n  - override /model: ${oc.env:MY_SECRET}\n"),
        ("experiment", "# @package _global_\ndefaults:\n  - override /${oc.env:MY_SECRET}: mlp\n"),
        ("hardware", "defaults:\n  - ${oc.env:MY_SECRET}\n"),
        ("hardware", "workers: ${oc.env:MY_SECRET}\n"),
        ("model", "_target_: ${oc.env:MY_SECRET}\n"),
    ],
    ids=["a choice", "a group", "a default", "hardware", "a class"],
)
def test_a_refusal_of_a_given_file_tells_no_secret(
    group: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    (tmp_path / group).mkdir()
    (tmp_path / group / "theirs.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        compose([f"{group}=theirs"], tmp_path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "my=data",
            "my data (1).csv",
            "a[1].csv",
            "ü",
            "数据",
            "a#1",
            "a;b",
            "it's",
            'say "hi"',
            "~/x",
            "a\\",
            "a{1}",
        ),
        *("{x}.csv", "}", "[x].csv", "a{b}.csv", "[0-9]*.csv", "[a]/[b].csv", "{ü}.csv", "[x] (1).csv"),
    ],
)
def test_a_value_that_is_not_hydras_is_shown_in_quotes_that_can_be_typed(value: str) -> None:
    if value != "a\\":
        hint = refusal("data=table", f"data.path={value}").partition("; quote the value: ")[2]
    else:
        hint = refusal("data=table", f"data.path=#{value}").partition("; quote the value: ")[2].replace("#", "")
    [typed] = shlex.split(hint)
    assert compose(["data=table", typed]).data.knobs["path"] == value


@pytest.mark.parametrize(
    ("word", "is_several"),
    [
        ("sync=ssp hardware.workers=4", True),
        ("sync=ssp  sync.staleness=2 epochs=3", True),
        ("data.path=my data=1.csv", True),  # or two words, as nobody can know
        ("data.path=my=data", False),
        ("data.path=my data (1).csv", False),
    ],
)
def test_several_overrides_in_one_word_are_told_apart_from_a_text(word: str, is_several: bool) -> None:
    several = "write each KEY=VALUE as a word of its own, or quote the value: "
    assert (several in refusal(word)) == is_several


@pytest.mark.parametrize(
    ("value", "typed"),
    [("{_target_:größe.Ö,lr:0.1}", '{_target_:"größe.Ö",lr:0.1}'), ("[数据, b]", '["数据", b]')],
)
def test_words_within_a_list_or_a_mapping_that_are_not_hydras_are_shown_in_quotes(value: str, typed: str) -> None:
    hint = refusal(f"data.inputs={value}").partition("; quote the value: ")[2]
    assert hint == shlex.quote(f"data.inputs={typed}")


@pytest.mark.parametrize("value", ["[a, b", "[a, [b], c", "{a:1", "{", "{a}{b}", "[x=y]", "{x"])
def test_a_list_or_a_mapping_that_is_broken_is_shown_whole_and_as_a_text(value: str) -> None:
    _, hint, typed = refusal("data=table", f"data.path={value}").partition(
        "; write a list as [1,2], a mapping as {key:1}, and a text in quotes: "
    )
    [typed] = shlex.split(typed)
    assert hint and compose(["data=table", typed]).data.knobs["path"] == value


def test_a_sweep_of_values_is_shown_as_a_list_and_as_a_text() -> None:
    words = refusal("data=table", "data.targets=a,b")
    assert "Write 'data.targets=[a,b]' for a list, 'data.targets=\"a,b\"' for a text, or see: paceline sweep" in words
    assert "Write optimizer.lr=0.01 for a number, 'optimizer.lr=[0,01]' for a list" in refusal("optimizer.lr=0,01")
    assert refusal("sync=bsp,asp").endswith("See: paceline sweep")
    assert "for a text" not in refusal("data=table", "data.inputs=[a],[b]")


def test_pythons_tuple_is_shown_as_a_list() -> None:
    words = refusal("optimizer=adam", "optimizer.betas=(0.9,0.95)")
    assert words.endswith("; write a list in brackets: 'optimizer.betas=[0.9,0.95]'")
    words = refusal("model.hidden=(64),(64,32)")
    assert words.endswith("; write a list in brackets: 'model.hidden=[64],[64,32]'")


def test_a_name_that_no_file_may_have_is_no_choice() -> None:
    for override in ("model=" + "a" * 9000, f"callbacks=[{'a' * 300}]", f"experiment='{'ü' * 130}'"):
        assert "there is no such choice" in refusal(override) and len(refusal(override)) < 300


def test_a_broken_yaml_of_a_users_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "broken.yaml").write_text("a: [\n")
    with pytest.raises(ConfigError, match="broken"):
        compose(["model=broken"], tmp_path)


def test_what_was_hidden_in_a_stored_run_must_be_given_again() -> None:
    stored = compose([]).model_copy(deep=True)
    stored.model.knobs["api_key"] = "***"
    with pytest.raises(ConfigError, match=r"model\.api_key: looked like a secret"):
        override_stored(stored, [])
    stored.model.knobs["api_key"] = "***"
    assert override_stored(stored, ["model.api_key=again"]).model.knobs["api_key"] == "again"


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("hardware.threads=99999999", "hardware.threads"),
        ("hardware.workers=100000", "hardware.workers"),
        ("hardware.timeout=1e300", "hardware.timeout"),
        ("batch_size=999999999999999999", "batch_size"),
    ],
)
def test_what_no_machine_can_do_is_out_of_range(override: str, key: str) -> None:
    assert refusal(override).startswith(f"{key}=")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("hardware=[1,2,3]", "hardware=[1,2,3]: takes choices by their names; see: paceline list hardware"),
        ("model=[[mlp]]", "model=[[mlp]]: takes choices by their names"),
        ("model=5", "model=5: takes choices by their names; see: paceline list model"),
        ("sync=nan", "sync=nan: takes choices by their names; see: paceline list sync"),
        ("sync=true", "sync=true: takes choices by their names"),
        ("sync={a:1}", "sync={a:1}: takes choices by their names"),
        ("sync=null", "sync=null: takes choices by their names"),
        ("model.hidden=" + "[" * 120 + "]" * 120, "is nested too deeply"),
        ("+tracking.x=" + "[" * 70 + "]" * 70, "nested"),
        ("+a=" + "{a:" * 120 + "1" + "}" * 120, "is nested too deeply"),
        ("+" + ".".join("a" * 2000) + "=1", "is nested too deeply"),
        ("model.hidden=[" + "1," * 20_000 + "1]", "is an override of 40,016 characters; the most is 10,000"),
        ("seed=" + "9" * 5000, "is not an override"),
        ("seed=" + "9" * 400, "whole number of more than 308 digits"),
        ("+tracking.x='\udcff'", "bytes that are no UTF-8"),
    ],
    ids=lambda text: text[:20].encode("ascii", "replace").decode(),
)
def test_an_override_that_is_too_long_too_deep_or_no_choice_is_refused_in_few_words(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert words in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "content", [b"x: " + b"[" * 50_000, b"x: \xff", b"a: &a [1]\n" + b"b: [*a]\n" * 9, None], ids=range(4)
)
def test_a_hostile_file_in_a_users_directory_is_named_and_not_waited_for(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "model" / "mine.yaml"
    file.parent.mkdir()
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        compose(["model=mine"], tmp_path)
    assert caught.value.exit_code == 2 and len(str(caught.value)) < 2000


OUTSIDE = [
    ("experiment", "# @package _global_\ndefaults: [../../theirs]\n"),
    ("experiment", "# @package _global_\ndefaults: [{../..: theirs}]\n"),
    ("experiment", "# @package _global_\ndefaults: [{override /sync: ../../theirs}]\n"),
    ("experiment", "# @package _global_\ndefaults: [/../theirs, _self_]\n"),
    ("sync", "defaults: [../../theirs]\n_target_: paceline.strategies.sync.bsp.BSP\n"),
    ("sync", None),
]


@pytest.mark.parametrize(("group", "content"), OUTSIDE, ids=range(len(OUTSIDE)))
def test_a_file_outside_of_a_users_directory_is_not_read(group: str, content: str | None, tmp_path: Path) -> None:
    theirs, folder = tmp_path / "theirs.yaml", tmp_path / "conf"
    theirs.write_text("_target_: paceline.strategies.sync.bsp.BSP\nseed: 7\n")
    (file := folder / group / "mine.yaml").parent.mkdir(parents=True)
    if content is None:
        file.symlink_to(theirs)
    else:
        file.write_text(content)
    with pytest.raises(
        ConfigError, match=r"is outside of --config-dir .*/conf, .* Put a copy inside of it|no such group"
    ):
        compose([f"{group}=mine"], folder)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("d{0}@z0, d{0}@z1, d{0}@z2", "more than 128 files"),
        (", ".join(f"large@z{i}" for i in range(110)), "more than 20,000 values"),
        (", ".join(f"virtual@z{i}" for i in range(130)), "more than 128 files"),
    ],
)
def test_defaults_that_load_files_over_and_over_are_refused_by_the_chosen_file(
    names: str, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "hardware"
    folder.mkdir()
    for i in range(7):
        (folder / f"d{i}.yaml").write_text(f"defaults: [{names.format(i + 1)}, _self_]\n")
    (folder / "d7.yaml").write_text("v: 1\n")
    (folder / "large.yaml").write_text(f"v: [{'1, ' * 200}]\n")
    with pytest.raises(ConfigError, match=rf"/hardware/d0\.yaml: its defaults load {said}\. Name fewer") as caught:
        compose(["hardware=d0"], tmp_path)
    assert caught.value.exit_code == 2


def test_a_preset_may_name_other_files_of_its_directory_and_no_file_beside_our_choices(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "more.yaml").write_text("# @package _global_\nseed: 7\n")
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults: [../base/more, _self_]\n")
    assert compose(["experiment=mine"], tmp_path).seed == 7
    with pytest.raises(
        ConfigError, match=r"sync/\.\./\.\./mkdocs\.yaml: is outside of the folder of paceline's choices|no such"
    ):
        compose(["sync=../../mkdocs"])
