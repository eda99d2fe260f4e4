"""Reads adversarial.json: a run's accuracy under attack over eps, warnings about it, and some attacked samples."""

from base64 import b64decode
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from .files import UnusableFileError, read_json
from .strict import StrictRecord

MOST_POINTS, MOST_ITEMS, MOST_PIXELS = 100, 16, 128 * 128

Share = Annotated[float, Field(ge=0, le=1)]
Eps = Annotated[float, Field(ge=0, le=1e9)]
Class = Annotated[int, Field(ge=0, le=10**9)]
Shares = Annotated[list[Share], Field(min_length=1, max_length=MOST_POINTS)]
Pixels = Annotated[str, Field(max_length=4 * MOST_PIXELS + 8)]  # base64 of bytes, channel by channel


class Curves(StrictRecord):
    eps: Annotated[list[Eps], Field(min_length=1, max_length=MOST_POINTS)]
    pgd: Shares | None = None
    fgsm: Shares | None = None
    noise: Shares | None = None

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if any(each is not None and len(each) != len(self.eps) for each in (self.pgd, self.fgsm, self.noise)):
            raise ValueError("has curves of another length than eps")
        return self


class Item(StrictRecord):
    """A sample. `perturbation`: grey in the middle is none, black and white are the most there is."""

    label: Class
    before: Class
    after: Class
    clean: Pixels
    changed: Pixels
    perturbation: Pixels


class Examples(StrictRecord):
    shape: Annotated[list[Annotated[int, Field(ge=1, le=MOST_PIXELS)]], Field(min_length=3, max_length=3)]
    items: list[Item] = Field(max_length=MOST_ITEMS)

    @model_validator(mode="after")
    def _of_the_shape(self) -> Self:
        channels, height, width = self.shape
        if channels not in (1, 3) or height * width > MOST_PIXELS:
            raise ValueError("is of no image")
        for item in self.items:
            for pixels in (item.clean, item.changed, item.perturbation):
                if len(b64decode(pixels, validate=True)) != channels * height * width:
                    raise ValueError("has an image of another size")
        return self


class Adversarial(StrictRecord):
    method: Literal["fgsm", "pgd"]
    norm: Literal["linf", "l2"]
    eps: Eps
    steps: Annotated[int, Field(ge=1, le=10**9)]
    step_size: Eps
    restarts: Annotated[int, Field(ge=1, le=10**9)]
    target: Annotated[str, Field(max_length=40)] | None
    samples: Annotated[int, Field(ge=1, le=10**12)]
    curve: Curves
    doubts: list[Annotated[str, Field(max_length=400)]] = Field(max_length=20)
    examples: Examples | None


def read_adversarial(file: Path) -> dict[str, Any]:
    """Raises `OSError`, or `UnusableFileError` where it is not one."""
    try:
        found = Adversarial.model_validate(read_json(file))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UnusableFileError(f"says of no attack what it left (see {where or 'its beginning'})") from None
    return found.model_dump()
