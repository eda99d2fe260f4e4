import threading
import time

import pytest

from paceline.tracking.mirror import Mirror
from paceline.tracking.run_directory import RunDirectory


class Recorder:
    def __init__(self):
        self.seen, self.closed_with = [], []

    def record(self, record):
        self.seen.append(record["step"])

    def close(self, summary):
        self.closed_with.append(summary)


class Failing(Recorder):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def record(self, record):
        super().record(record)
        if record["step"] == self.at:
            raise ConnectionResetError("gone")


class Stuck(Recorder):
    def __init__(self):
        super().__init__()
        self.release = threading.Event()

    def record(self, record):
        self.release.wait(30)


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "first")


def test_every_sink_gets_every_record_in_order_and_the_summary_once(run):
    sinks = [Recorder(), Recorder()]
    mirror = Mirror(run, sinks)
    for i in range(500):
        run.append({"step": i})
    run.write_summary({"status": "completed"})
    assert mirror.close()
    for sink in sinks:
        assert sink.seen == list(range(500))
        assert sink.closed_with == [{"status": "completed"}]


def test_a_run_without_a_summary_closes_its_sinks_with_none(run):
    sink = Recorder()
    assert Mirror(run, [sink]).close()
    assert sink.closed_with == [None]


def test_a_damaged_summary_closes_the_sinks_with_none(run):
    sink = Recorder()
    mirror = Mirror(run, [sink])
    run.summary.write_text("{")
    assert mirror.close()
    assert sink.closed_with == [None]


def test_a_sink_that_raises_is_dropped_with_one_line_and_the_others_go_on(run, capsys):
    failing, other = Failing(at=3), Recorder()
    mirror = Mirror(run, [failing, other])
    for i in range(10):
        run.append({"step": i})
    assert mirror.close()
    assert failing.seen == [0, 1, 2, 3] and failing.closed_with == []
    assert other.seen == list(range(10)) and other.closed_with == [None]
    assert capsys.readouterr().err == "Failing stopped (ConnectionResetError: gone); training goes on\n"


def test_a_sink_that_fails_on_closing_leaves_the_next_one_closed(run, capsys):
    class FailsLast(Recorder):
        def close(self, summary):
            raise OSError("late")

    other = Recorder()
    assert Mirror(run, [FailsLast(), other]).close()
    assert other.closed_with == [None]
    assert "FailsLast stopped (OSError: late)" in capsys.readouterr().err


def test_a_sink_that_hangs_neither_blocks_training_nor_closing(run):
    stuck = Stuck()
    mirror = Mirror(run, [stuck])
    begun = time.monotonic()
    for i in range(100):
        run.append({"step": i})
    assert not mirror.close(timeout=0.5)
    assert time.monotonic() - begun < 5
    assert mirror.daemon
    stuck.release.set()
    assert mirror.close(timeout=5)


def test_a_resumed_run_hands_over_only_what_is_new(run):
    run.append({"step": 1})
    again = RunDirectory.open(run.path.parent, "first")
    again.append({"step": 2})
    sink = Recorder()
    assert Mirror(again, [sink]).close()
    assert sink.seen == [2]
