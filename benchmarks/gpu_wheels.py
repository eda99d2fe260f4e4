"""`make gpu-wheels`: in a folder, what a machine for training with a card lacks, for one that reaches no index.

Such machines come with torch and the usual packages of numbers, and mostly without Hydra, DeepSpeed or W&B. The folder
is carried there, and `pip install --no-index --no-deps FOLDER/*.whl` takes it. The versions are those installed here.
"""

import subprocess
import sys
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

THERE = (
    *("torch", "numpy", "scipy", "scikit-learn", "pandas", "matplotlib", "pyyaml", "pillow", "requests", "tqdm"),
    *("psutil", "packaging", "pytest", "setuptools", "pip", "ninja"),
)
NEEDED = ("paceline", "opacus", "cryptography", "hypothesis")  # with what its tests that need a card import


def closure(names: tuple[str, ...], but: set[str]) -> set[str]:
    """Returns `names` and all that they require as they are installed here, in pip's spelling, without `but`."""
    found, left = set[str](), [canonicalize_name(name) for name in names]
    while left:
        name = left.pop()
        if name in found or name in but:
            continue
        found.add(name)
        for each in map(Requirement, requires(name) or ()):
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                left += [canonicalize_name(each.name)]
    return found


def main(
    out: Annotated[Path, typer.Argument(help="The folder.")] = Path("gpu-wheels"),
    python: Annotated[str, typer.Option(help="The Python there.")] = "3.12",
    there: Annotated[list[str] | None, typer.Option(help=f"What is there already; {', '.join(THERE)}, else.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="What is left out, and is missed there.")] = None,
) -> None:
    """Collect wheels for a machine with a card that reaches no index."""
    present = closure(tuple(there or THERE), set())
    wanted = closure(NEEDED, present | {canonicalize_name(each) for each in without or ()}) - {"paceline"}
    out.mkdir(parents=True, exist_ok=True)
    for name in sorted(wanted):
        exact = f"{name}=={distribution(name).version}"
        pip = [sys.executable, "-m", "pip"]
        fetch = [*pip, "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", python]
        if subprocess.run([*fetch, "--dest", str(out), exact], capture_output=True).returncode == 0:
            continue
        # there is no wheel of it: one is built here, which will do there where it is of no Python and no system
        build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), exact]
        built = subprocess.run(build, capture_output=True, text=True)
        if built.returncode or not list(out.glob(f"{name.replace('-', '_')}-*-none-any.whl")):
            print(
                f"{exact}: has no wheel for Python {python}, and none was built: {built.stderr[-300:]}", file=sys.stderr
            )
            raise typer.Exit(3)
    wheels = sorted(out.glob("*.whl"), key=lambda wheel: -wheel.stat().st_size)
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:7.2f} MiB  {wheel.name}")
    print(f"{sum(wheel.stat().st_size for wheel in wheels) / 2**20:7.2f} MiB  {out}: {len(wheels)} wheels")


if __name__ == "__main__":
    typer.run(main)
