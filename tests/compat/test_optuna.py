"""What is asked of an Optuna study's storage."""

import warnings
from pathlib import Path

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy import text

from paceline.compat import optuna as database

pytestmark = pytest.mark.filterwarnings(  # about heartbeats, which we send ourselves
    "ignore::optuna.exceptions.ExperimentalWarning", "ignore:Heartbeat of storage:UserWarning"
)


@pytest.fixture
def storage(tmp_path: Path) -> RDBStorage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RDBStorage(f"sqlite:///{tmp_path}/study.db", heartbeat_interval=60, grace_period=120)


@pytest.fixture
def study(storage: RDBStorage) -> optuna.Study:
    optuna.create_study(storage=storage)  # so that numbers within a study are not those of the database
    optuna.create_study(storage=storage, study_name="other").ask()
    return optuna.create_study(storage=storage, study_name="mine")


def test_a_trial_is_found_by_its_number_in_its_study(study: optuna.Study) -> None:
    study.ask()
    asked = study.ask()
    found = database.trial_numbered(study, asked.number)
    assert (found.number, found.state) == (1, TrialState.RUNNING), "a trial's number leads to another trial"
    assert database.id_of(found) == database.id_of(asked) != asked.number, "a trial's id is not its id in the database"
    database.running(study, 1).report(0.5, step=3)
    assert database.trial_numbered(study, 1).intermediate_values == {3: 0.5}, "a running trial is lost"


def test_a_fact_is_kept_of_a_trial_until_it_has_ended(study: optuna.Study) -> None:
    asked = study.ask()
    database.set_user_attribute(study, database.id_of(asked), "runs", ["a"])
    assert database.trial_numbered(study, 0).user_attrs == {"runs": ["a"]}, "what a trial's runs were is not stored"
    study.tell(0, 1.0)
    with pytest.raises(UpdateFinishedTrialError):
        database.set_user_attribute(study, database.id_of(asked), "runs", ["b"])


def test_a_trial_whose_last_beat_is_long_ago_is_silent(study: optuna.Study, storage: RDBStorage) -> None:
    quiet, loud = study.ask(), study.ask()
    for trial in (quiet, loud):
        database.beat(study, database.id_of(trial))
    assert database.silent(study) == set(), "a trial that has just been heard of would be taken over"
    with storage.engine.begin() as connection:
        changed = "UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00' WHERE trial_id = :trial"
        connection.execute(text(changed), {"trial": database.id_of(quiet)})
    assert database.silent(study) == {database.id_of(quiet)}, "what a dead machine had begun is never run again"


def test_a_waiting_trial_becomes_what_it_was_queued_as(study: optuna.Study) -> None:
    queued = optuna.trial.create_trial(state=TrialState.WAITING, system_attrs={database.POINT: {"rate": 0.25}})
    study.add_trial(queued)
    asked = study.ask({"rate": optuna.distributions.FloatDistribution(0.0, 1.0)})
    assert asked.params == {"rate": 0.25}, "Optuna draws at random what a grid had queued"


def test_a_closed_study_holds_no_connection(study: optuna.Study, storage: RDBStorage) -> None:
    study.ask()
    assert storage.engine.pool.checkedin() > 0  # pyright: ignore[reportAttributeAccessIssue]
    database.close(study)
    assert storage.engine.pool.checkedin() == 0, "a closed study holds its database's file"  # pyright: ignore[reportAttributeAccessIssue]
