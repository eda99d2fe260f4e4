"""TAB in a real bash."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from needs import needs_bash

from paceline.tracking.run_directory import RunDirectory

BIN = Path(sys.executable).parent
pytestmark = needs_bash

# Readline splits the line at COMP_WORDBREAKS and gives the function the piece after the last break as $2.
ASK = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=() COMP_CWORD=0
_paceline_completion paceline "${COMP_LINE##*[$COMP_WORDBREAKS]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def environment(here: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(here)}


@pytest.fixture
def script(here: Path, environment: dict[str, str]) -> Path:
    """What `--install-completion` writes for bash."""
    command = ["bash", "-c", "paceline --install-completion; exit $?"]  # it asks which shell it was started from
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert ".bash_completions/paceline.sh" in (here / ".bashrc").read_text()
    return here / ".bash_completions" / "paceline.sh"


@pytest.fixture
def offered(script: Path, here: Path, environment: dict[str, str]):
    def ask(line: str) -> list[str]:
        command = ["bash", "--norc", "-c", ASK, "ask", str(script), line]
        done = subprocess.run(command, env=environment, cwd=here, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return done.stdout.split()

    return ask


def test_what_follows_a_break_alone_is_inserted(offered) -> None:
    assert offered("paceline train strat") == ["strategy="]
    assert offered("paceline train model=c") == ["cnn"]
    assert offered("paceline train model=") == [
        "alexnet",
        "cnn",
        "gpt",
        "gpt_100m",
        "gpt_10b",
        "gpt_1b",
        "gpt_20b",
        "gpt_400m",
        "gpt_4b",
        "kmeans",
        "linear",
        "llama_1b",
        "llama_405b",
        "llama_70b",
        "llama_8b",
        "logistic_regression",
        "mixtral_8x7b",
        "mlp",
        "pca",
        "random_features",
        "resnet",
        "sparse_logistic_regression",
        "unet",
        "vit",
    ]
    assert offered("paceline plan sync=bsp model=c") == ["cnn"]


@pytest.mark.slow
def test_keys_are_those_of_the_choice_on_the_line_or_the_default(offered) -> None:
    assert offered("paceline train optimizer.l") == ["optimizer.lr="]
    assert offered("paceline train optimizer.b") == []
    assert offered("paceline train optimizer=adam optimizer.b") == ["optimizer.betas="]
    assert offered("paceline train sync.pu") == []
    assert offered("paceline train sync=asp sync.pu") == ["sync.push="]
    assert offered("paceline train epo") == ["epochs="]
    assert offered("paceline train checkp") == ["checkpoint."]
    assert offered("paceline train checkpoint.k") == ["checkpoint.keep="]


def test_commands_options_and_their_values(offered) -> None:
    assert offered("paceline do") == ["doctor"]
    assert offered("paceline cost spot") == ["spot_price="]
    assert offered("paceline cost hardware=h100_") == ["h100_8"]
    assert "--dry-run" in offered("paceline train --d")
    assert offered("paceline compare --format m") == ["markdown"]
    assert offered("paceline list stra") == ["stragglers", "strategy"]


@pytest.mark.slow
def test_runs_and_their_checkpoints(offered, here: Path) -> None:
    for name in ("one", "other"):
        run = RunDirectory.create(here / "runs", name)
        for step in ("step-00000004", "step-00000008", "step-00000012.tmp"):
            (run.checkpoints / step).mkdir()
    assert offered("paceline compare o") == ["one", "other"]
    assert offered("paceline compare --baseline on") == ["one"]
    RunDirectory.create(here / "runs" / "only-sweep", "t0")
    (here / "runs" / "only-sweep" / "sweep.yaml").touch()
    assert offered("paceline show on") == ["one", "only-sweep"]
    assert offered("paceline compare only-sweep/") == ["only-sweep/t0"]
    assert offered("paceline compare --sort thr") == ["throughput"]
    assert offered("paceline train --resume ot") == ["other"]
    assert offered("paceline train --resume one@") == ["step-00000004", "step-00000008"]


def test_a_users_own_choices_are_offered(offered, here: Path) -> None:
    (here / "conf" / "model").mkdir(parents=True)
    (here / "conf" / "model" / "mine.yaml").write_text("# Mine\n_target_: mine.Model\nwidth: 3\n")
    assert offered("paceline train --config-dir conf model=min") == ["mine"]
    assert offered("paceline train --config-dir conf model=mine model.w") == ["model.width="]
    assert offered("paceline train --config-dir nowhere model=min") == []


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [("paceline train strat", "strategy="), ("paceline train model=c", "model=cnn "), ("paceline do", "doctor ")],
)
def test_a_tab_on_a_terminal_completes_the_line(
    typed: str, becomes: str, script: Path, environment: dict[str, str]
) -> None:
    terminal, theirs = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        env={**environment, "PS1": "$ ", "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        os.write(terminal, f"source '{script}'; echo rea''dy\n".encode())
        read_until(terminal, "ready\r\n")
        os.write(terminal, f"{typed}\t".encode())
        assert read_until(terminal, becomes).endswith(becomes)
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
        os.close(theirs)


def read_until(terminal: int, text: str, seconds: float = 20.0) -> str:
    """What the terminal shows up to and with `text`, or all there was in the time."""
    shown, deadline = "", time.monotonic() + seconds
    while text not in shown and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


def asked(here: Path, shell: str, line: str, **more: str) -> tuple[int, list[str], str]:
    """Returns the exit status, the candidates and the errors that a shell's script gets."""
    variables = {"_PACELINE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, **more}
    variables |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    command = [sys.executable, "-m", "paceline.cli.main"]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=here, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_an_answer_to_a_shell_is_no_error(here: Path, shell: str) -> None:
    status, candidates, errors = asked(here, shell, "paceline do", _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert (status, errors) == (0, "")
    assert any("doctor" in each for each in candidates)


def test_fish_hears_whether_there_are_candidates(here: Path) -> None:
    assert asked(here, "fish", "paceline do", _TYPER_COMPLETE_FISH_ACTION="is-args")[0] == 0
    assert asked(here, "fish", "paceline no-such", _TYPER_COMPLETE_FISH_ACTION="is-args")[0] == 1


def test_a_name_that_a_shell_would_run_is_not_offered(here: Path) -> None:
    for name in ("good", "$(touch made)", "a;id", "my run", "\x1b[31m", "swept/$(touch made)", "swept/t0"):
        (here / "runs" / name).mkdir(parents=True)
        (here / "runs" / name / "metrics.jsonl").touch()
    (here / "runs" / "swept" / "sweep.yaml").touch()
    assert asked(here, "bash", "paceline show ")[1] == ["good", "swept"]
    assert asked(here, "bash", "paceline show swept/")[1] == ["swept/t0"]
