"""`make safeguards`: each safeguard taken out of a copy of the tree must turn a row of `make faults` red.

`python -m faults.safeguards store reader` tries those alone whose name has one of the words. Exit status 1: the harness
did not notice that a safeguard was gone; 2: this list is wrong (a text is no longer there, or finds no cases).
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mutations import WrongListError, check_imports, copy_of_the_tree, environment

SECONDS = 900  # that the cases of one safeguard may take
RIGHT, WRONG = 0, 1  # exit statuses of `python -m faults`


@dataclass(frozen=True)
class Safeguard:
    """`old` is once in `file`; `new` does without it. `cases`: options of `python -m faults` that must find it out."""

    name: str
    file: str
    old: str
    new: str
    cases: str


SAFEGUARDS = [
    Safeguard(
        "columns of Arrow are validated before they are read",
        "tasks/data/hugging_face.py",
        "column.validate(full=True)",
        "pass",
        "--only damaged-data --match Arrow",
    ),
    Safeguard(
        "a damaged archive is no mistake of ours",
        "tasks/data/mapped.py",
        "except Exception as error:  # BadZipFile",
        "except zipfile.BadZipFile as error:  # BadZipFile",
        "--only damaged-data --match npz",
    ),
    Safeguard(
        "the listener asks for the run's key",
        "comm/handshake.py",
        'if not hmac.compare_digest(proof, self._own.proof("caller", rank, stranger.nonce, nonce)):',
        "if not proof:",
        "--only strangers --match 'a key of its own'",
    ),
    Safeguard(
        "strangers that talk nonsense are dropped",
        "comm/handshake.py",
        'self._drop(poll, stranger, "does not know this run\'s key")',
        "raise AssertionError",
        "--only strangers --match garbage",
    ),
    Safeguard(
        "an early end is no success",
        "engine/launch/launching.py",
        'raise WorkerFailedError(f"{who}; {what_is_saved(assignment)}", WORKER_FAILED, [])',
        "return",
        "--only user-code --match signal_itself",
    ),
    Safeguard(
        "a worker that is told to stop saves",
        "engine/launch/worker_process.py",
        "signal.signal(signal.SIGTERM, lambda *_: request_stop())",
        "assert request_stop",
        "--only stops --match 'once stopped' --share 0.3",
    ),
    Safeguard(
        "who lost a peer is not to blame",
        "engine/launch/launching.py",
        "LOST_A_PEER: 2}",
        "LOST_A_PEER: -1}",
        "--only user-code --match 'raise by'",
    ),
    Safeguard(
        "who calls sys.exit is said to have left",
        "engine/launch/worker_process.py",
        "if isinstance(error, SystemExit):",
        "if error is None:",
        "--only user-code --match exit_0",
    ),
    Safeguard(
        "the manifest has its own checksum",
        "engine/base/checkpoint.py",
        "if not json_is_whole(text):",
        "if not text:",
        "--only corruptions --match manifest.json",
    ),
    Safeguard(
        "a part's checksum is looked at",
        "engine/base/checkpoint.py",
        "if found != expected:",
        "if not found:",
        "--only corruptions --match 'part-000.safetensors: a bit flipped'",
    ),
    Safeguard(
        "nobody waits for a pipe",
        "tracking/files.py",
        "flags | os.O_NONBLOCK | os.O_NOCTTY",
        "flags | os.O_NOCTTY",
        "--only corruptions --match 'a FIFO' --share 0.4",
    ),
    Safeguard(
        "files are not nested deeply",
        "tracking/files.py",
        'if "*" in plain or len(plain) > most or _may_be_deep(plain):',
        "if not plain:",
        "--only corruptions --match 'config.yaml: nested deeply'",
    ),
    Safeguard(
        "a fork server's death is known for what it is",
        "engine/launch/local_workers.py",
        "if code == LOST and (end := end_of_fork_server()):",
        "if code == LOST and (end := ''):",
        "--only kills --match 'fork server, ' --share 0.3",
    ),
    Safeguard(
        "a checkpoint without room is said to be one",
        "engine/base/checkpoint.py",
        "raise _unwritable(directory, error) from error",
        "raise RuntimeError from error",
        '--only disks --match "run directory\'s"',
    ),
    Safeguard(
        "numbers that torch cannot hold are refused",
        "engine/features/optimizer_state.py",
        "except Exception as error:  # wants a closure",
        "except (TypeError, RuntimeError, AssertionError) as error:  # wants a closure",
        "--only overrides --match weight_decay --seed 1",
    ),
]


def notices(safeguard: Safeguard, tree: Path) -> bool:
    """Whether the cases turn red without the safeguard."""
    path = tree / safeguard.file
    whole = path.read_text()
    if (count := whole.count(safeguard.old)) != 1:
        raise WrongListError(f"{safeguard.file}: has {count} times, not once:\n{safeguard.old}")
    path.write_text(whole.replace(safeguard.old, safeguard.new))
    try:
        status, said = faults(tree, safeguard.cases)
    finally:
        path.write_text(whole)
    if status not in (RIGHT, WRONG):
        raise WrongListError(f"python -m faults {safeguard.cases} ends with {status}:\n{said}")
    return status == WRONG


def faults(tree: Path, cases: str) -> tuple[int, str]:
    """The harness's exit status in the copy, and the end of what it said."""
    tests = tree / "tests"
    path = os.pathsep.join(map(str, (tree, tests, tests / "engine")))
    done = subprocess.run(
        f"exec {sys.executable} -m faults {cases}",
        shell=True,
        cwd=tests,
        env={**environment(tree), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, (done.stdout + done.stderr)[-2000:]


def main(words: list[str]) -> int:
    chosen = [one for one in SAFEGUARDS if not words or any(word in one.name for word in words)]
    unnoticed = wrong = 0
    with tempfile.TemporaryDirectory(prefix="paceline-safeguards-") as name:
        tree = Path(name)
        copy_of_the_tree(tree)
        check_imports(tree)
        for safeguard in chosen:
            began = time.monotonic()
            try:
                noticed = notices(safeguard, tree)
                verdict = "red, as it must be" if noticed else "NOT NOTICED"
                unnoticed += not noticed
            except (WrongListError, subprocess.TimeoutExpired) as error:
                verdict, wrong = f"WRONG: {error}", wrong + 1
            print(f"without: {safeguard.name:52} {time.monotonic() - began:5.0f} s  {verdict}", flush=True)
    print(f"{len(chosen)} safeguards taken out: {unnoticed} not noticed, {wrong} wrong")
    return 2 if wrong else 1 if unnoticed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except WrongListError as error:
        sys.exit(f"safeguards: {error}")
