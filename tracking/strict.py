"""The base of what is read of a run's JSON files by pydantic: nothing is converted, and unknown keys are refused."""

from pydantic import BaseModel, ConfigDict


class StrictRecord(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
