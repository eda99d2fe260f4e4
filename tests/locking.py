"""Sorts what `uv pip compile --generate-hashes` resolved into the files that `make setup` installs: see `make lock`.

    python tests/locking.py RESOLVED WITH_DOCS CPU_WHEELS...

A file of hashes lists every file of a version, as the index states them, for all systems and Pythons. torch's wheel
with CUDA needs libraries that its CPU build does without: both have files of their own. The CPU build is on another
index. CPU_WHEELS are those that the tests ran with, NAME==VERSION=SHA256. WITH_DOCS resolved the group docs as well:
its further packages are a file that `make docs` installs, and `make setup` does not.
"""

import re
import sys
from pathlib import Path

LOCKED = Path(__file__).parents[1] / "locked"
FIRST = ("pip", "setuptools")  # what installs and builds all others
HEADS = {
    "build": "What installs and builds the rest.",
    "torch": "torch as the index has it. make setup takes it where the build of torch-cpu.txt is not to be had.",
    "cuda": "What torch's CUDA build needs and its CPU build does not.",
    "docs": "What builds the site: make docs installs it beside the rest.",
    "requirements": "Everything else: paceline's dependencies, its extras, and the tools of its development.",
}


def kind_of(name: str) -> str:
    if name in FIRST:
        return "build"
    if name == "torch":
        return "torch"
    return "cuda" if name.startswith(("nvidia-", "cuda-")) or name == "triton" else "requirements"


def blocks(text: str) -> dict[str, str]:
    """Each requirement with its hashes, by its name."""
    found = re.findall(r"^[A-Za-z0-9].*?(?=^[A-Za-z0-9]|\Z)", text, re.MULTILINE | re.DOTALL)
    return {re.split(r"[=\s;\[]", each)[0].lower(): each.rstrip() for each in found}


def main(resolved: str, with_docs: str, *wheels: str) -> None:
    usual = blocks(Path(resolved).read_text())
    of = usual | blocks(Path(with_docs).read_text())
    # colorama, which others need on Windows alone, is among what only the site needs here
    kinds = {name: kind_of(name) if of[name] == usual.get(name) else "docs" for name in of}
    for kind, said in HEADS.items():
        lines = [of[name] for name in sorted(of) if kinds[name] == kind]
        (LOCKED / f"{kind}.txt").write_text("\n".join([f"# {said} Renew: make lock", *lines]) + "\n")
    pins = [f"{pinned} --hash=sha256:{digest}" for pinned, _, digest in (wheel.rpartition("=") for wheel in wheels)]
    (LOCKED / "torch-cpu.txt").write_text(
        "\n".join(["# torch's CPU build. Makefile has its wheels: CPU_WHEELS", *pins]) + "\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
