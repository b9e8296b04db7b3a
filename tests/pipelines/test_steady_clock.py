"""A clock that jumps while a run goes on: the hour that it skips is not decided before it is over."""

import pytest
from privstream.pipelines.sources import watch_events
from privstream.pipelines.sources.watch_events import FOLDER, LASTS, PollFolder, SteadyClock
from privstream.transforms.timing.steps import MICROS

HOUR = 3600
PERIOD = LASTS // MICROS
BEGAN = 1_700_000_000


class Clocks:
    """A time of day that can be set, and what has passed."""

    def __init__(self, began=BEGAN):
        self.day, self.passed = began, 0
        self.steady = SteadyClock(lambda: self.day, lambda: self.passed)

    def wait(self, seconds):
        self.day, self.passed = self.day + seconds, self.passed + seconds

    def run(self, seconds):
        """Let time pass while a source asks every second."""
        for _ in range(seconds):
            self.wait(1)
            self.steady.now()

    @property
    def now(self):
        return self.steady.now() // MICROS - BEGAN

    @property
    def behind(self):
        """Seconds behind the time of day."""
        return self.day - BEGAN - self.now


def test_a_jump_forward_is_not_followed():
    clocks = Clocks()
    clocks.wait(5)
    clocks.day += HOUR
    clocks.wait(2)
    assert clocks.now == 7
    clocks.day -= HOUR
    assert clocks.now == 7


def test_a_jump_backward_is_followed_and_then_forgotten():
    clocks = Clocks()
    clocks.day -= HOUR
    assert clocks.now == -HOUR
    clocks.day += 2 * HOUR
    assert clocks.now == 0, "no later than the clock by which it began"


def test_a_stamp_of_others_proves_that_it_is_so_late():
    clocks = Clocks()
    clocks.day += HOUR  # it had been wrong, and was set right
    clocks.steady.at_least((BEGAN + 1800) * MICROS)
    clocks.wait(3)
    assert clocks.now == 1803
    clocks.steady.at_least((BEGAN + HOUR + 3) * MICROS)
    assert clocks.now == HOUR + 3
    clocks.steady.at_least(BEGAN * MICROS)
    assert clocks.now == HOUR + 3, "what is old proves nothing"


@pytest.mark.parametrize("ahead", [1, HOUR, 30 * 365 * 24 * HOUR])
def test_a_stamp_beyond_the_time_of_day_proves_nothing(ahead):
    clocks = Clocks()
    clocks.steady.at_least((BEGAN + ahead) * MICROS)
    clocks.day += ahead + HOUR
    clocks.wait(2)
    assert clocks.now == 2


@pytest.mark.parametrize("before", [0, 1, PERIOD // 2, PERIOD - 1, PERIOD, 3 * PERIOD + 7])
def test_a_jump_that_lasts_is_followed_after_one_to_two_periods(before):
    clocks = Clocks()
    clocks.run(before)
    clocks.day += HOUR
    clocks.run(PERIOD - 1)
    assert clocks.behind == HOUR
    clocks.run(PERIOD + 1)
    assert clocks.behind == 0
    clocks.run(10 * PERIOD)
    assert clocks.behind == 0


def test_a_folder_without_files_does_not_follow_the_jump_before_a_file_is_as_late(tmp_path, monkeypatch):
    now = tmp_path.stat().st_ctime
    clocks = Clocks(began=now - HOUR)
    monkeypatch.setattr(watch_events, "clock_of", lambda _: clocks.steady)
    (folder := tmp_path / "incoming").mkdir()
    source = PollFolder(str(folder), None, 1, "arrival")
    first = source.poll(FOLDER, None, 0)
    clocks.day += 2 * HOUR
    clocks.wait(4)
    later = source.poll(FOLDER, first.position, first.watermark)
    assert round((later.watermark - first.watermark) / MICROS) == 4
    (folder / "events.jsonl").write_text("{}\n")
    for _ in range(3):  # seen, taken, and the time after that
        later = source.poll(FOLDER, later.position, later.watermark)
    assert HOUR <= (later.watermark - first.watermark) / MICROS < HOUR + 60
