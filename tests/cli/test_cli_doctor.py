"""`paceline doctor`: every line stands for itself."""

import os
from pathlib import Path

import pytest

from paceline.cli import doctor
from paceline.cli.doctor import CHECKS, Check


def lines(out: str) -> dict[str, tuple[str, str]]:
    """Name -> (mark, text)."""
    found = {}
    for line in out.split("\n\n")[0].splitlines():
        mark, rest = line[:2], line[4:]
        name, _, text = rest.partition("  ")
        found[name] = (mark, text.strip())
    return found


def test_it_tells_of_everything_and_builds_and_writes_nothing(paceline, here: Path) -> None:
    ended = paceline("doctor")
    assert ended.status == 0 and "training is possible here" in ended.out
    found = lines(ended.out)
    assert {check.name for check in CHECKS} | {"data=digits", "data=fashion_mnist", "data=text"} <= set(found)
    assert all(mark in ("ok", "no") and text for mark, text in found.values())
    assert found["torch"][0] == found["gloo"][0] == found["data=digits"][0] == "ok"
    assert not list(here.iterdir())


def test_without_a_folder_for_temporary_files_it_imports_no_library(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", None)
        patch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc/none"])
        patch.setattr(doctor, "CHECKS", [Check("torch", lambda: pytest.fail("imported"), needed=True)])
        ended = paceline("doctor")
    assert ended.status == 3 and "TMPDIR" in ended.last and ended.out == ""


@pytest.mark.parametrize("device", ["gloo", "nccl"])
def test_a_group_that_cannot_be_made_does_not_work(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_group(*_: object) -> None:
        raise RuntimeError("no network")

    monkeypatch.setattr("paceline.comm.groups.Groups.over", no_group)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(doctor, "_meet", lambda _, meet=doctor._meet: meet("cpu"))
    look = {check.name: check.look for check in CHECKS}[device]
    with pytest.raises(RuntimeError, match="no network"):
        look()


def broken() -> doctor.Finding:
    raise RuntimeError("no such thing\nsecond line")


@pytest.mark.parametrize("needed", [True, False])
def test_a_check_that_fails_is_a_line_and_decides_only_when_needed(
    needed: bool, paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", [Check("odd", broken, needed)])
    ended = paceline("doctor")
    assert lines(ended.out)["odd"] == ("no", "RuntimeError: no such thing")
    assert ended.status == (3 if needed else 0)
    assert ("training is not possible here: odd" in ended.out) == needed
    assert "Traceback" not in ended.err


def test_without_any_data_set_training_is_not_possible(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", [])
    monkeypatch.setattr(doctor, "_data", lambda name: doctor.Finding(False, "missing"))
    ended = paceline("doctor")
    assert ended.status == 3 and ended.out.endswith("not possible here: data\n")


def test_data_are_found_without_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.tracking.sinks.find_spec", lambda name: None)
    assert doctor._data("digits").works


def test_a_missing_data_set_comes_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr("paceline.tasks.data.fashion_mnist.SYSTEM_FOLDER", here / "nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here))
    finding = doctor._data("fashion_mnist")
    assert not finding.works and "data.download=true" in finding.text


@pytest.mark.parametrize(
    ("name", "package"), [("svmlight", None), ("arrays", None), ("table", "pyarrow"), ("images", "PIL")]
)
def test_data_of_ones_own_are_not_missing_but_their_reader_may_be(
    name: str, package: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.tasks.data.files.folder_of", lambda _: "here")
    finding = doctor._data(name)
    assert finding.works and finding.text.startswith("reads files of yours. Set data.path to a")
    monkeypatch.setattr("paceline.tasks.data.files.folder_of", lambda _: None)
    finding = doctor._data(name)
    assert finding.works == (package is None)
    assert package is None or finding.text == f"{package}, which reads them, is not installed"


@pytest.mark.budget(2)  # it imports W&B
@pytest.mark.parametrize("place", ["WANDB_API_KEY", "NETRC"])
def test_a_key_is_noticed_and_never_printed(place: str, paceline, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(here / "config"))
    monkeypatch.setattr(doctor, "CHECKS", [check for check in CHECKS if check.name == "wandb"])
    file = here / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    assert "offline: no API key" in paceline("doctor").out
    # W&B itself takes that login for its newer address, too
    file.write_text('machine api.wandb.ai login user password ""\n')  # a run takes it for none
    assert "offline: no API key" in paceline("doctor").out
    file.unlink()
    key = "0123456789abcdef" * 2
    if place == "NETRC":
        file.write_text(f"machine api.wandb.ai login user password {key}\n")
        file.chmod(0o600)
    else:
        monkeypatch.setenv(place, key)
    ended = paceline("doctor")
    assert "online: an API key is there for https://api." in ended.out
    assert key not in ended.out + ended.err
    (here / "config").mkdir()
    (here / "config" / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9999\n")
    of_the_user = paceline("doctor")
    expected = "for http://127.0.0.1:9999" if place == "WANDB_API_KEY" else "no API key"
    assert expected in of_the_user.out
    assert of_the_user.err == ""
    (here / "wandb").mkdir()
    (here / "wandb" / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9999\nmode = online\n")
    assert "offline: wandb/settings of the current folder is not followed" in paceline("doctor").out
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert "offline: as WANDB_MODE says" in paceline("doctor").out


def test_deepspeed_ops_are_looked_for_and_their_tools_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(here))
    monkeypatch.setattr(doctor, "_has_compiler", lambda: False)
    finding = doctor._deepspeed()
    assert not finding.works and "install g++" in finding.text
    (here / "cpu_adam").mkdir()
    (here / "cpu_adam" / "cpu_adam.so").touch()
    finding = doctor._deepspeed()
    assert finding.works and "ops built: cpu_adam" in finding.text


def test_a_place_that_cannot_be_written_is_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._run_directory().works
    monkeypatch.setattr(os, "access", lambda *_: False)
    finding = doctor._run_directory()
    assert not finding.works and "cannot be written" in finding.text
