"""An Optuna study's storage, and numbers in it: what its public interface has no way to ask or do."""

from typing import Any, cast

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

POINT = "fixed_params"  # the system attribute with which a waiting trial says what it is to be


def id_of(trial: optuna.Trial | FrozenTrial) -> int:
    """Returns the trial's number in the database, of all studies."""
    return trial._trial_id


def trial_numbered(study: optuna.Study, number: int) -> FrozenTrial:
    """Returns the trial as the database has it now, in whichever state."""
    storage = study._storage
    return storage.get_trial(storage.get_trial_id_from_study_id_trial_number(study._study_id, number))


def running(study: optuna.Study, number: int) -> optuna.Trial:
    return optuna.Trial(study, id_of(trial_numbered(study, number)))


def set_user_attribute(study: optuna.Study, trial_id: int, key: str, value: Any) -> None:
    """Sets an attribute of any trial. Raises `UpdateFinishedTrialError` if the trial has ended."""
    study._storage.set_trial_user_attr(trial_id, key, value)


def beat(study: optuna.Study, trial_id: int) -> None:
    """Say that it still runs."""
    cast(Any, study._storage).record_heartbeat(trial_id)


def silent(study: optuna.Study) -> set[int]:
    """Ids of running trials whose last beat is longer ago than the storage's grace period."""
    return set(cast(Any, study._storage)._get_stale_trial_ids(study._study_id))


def close(study: optuna.Study) -> None:
    """Let go of the database."""
    storage: Any = study._storage
    storage.remove_session()
    database = getattr(storage, "_backend", storage)  # a study wraps a database in a cache
    assert isinstance(database, RDBStorage)
    database.engine.dispose()
