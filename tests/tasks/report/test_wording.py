"""The sentences that pages of several tasks share."""

from relpos_tasks.report.wording import busy_note
from relpos_tasks.training.clock import TrainingTime


def test_of_many_models_on_a_busy_machine_the_least_and_the_most_is_said():
    times = {f"m{n}": [TrainingTime(60.0, 1 + n / 10, True)] for n in range(4)}
    few = {name: times[name] for name in ("m1", "m2", "m3")}
    assert busy_note(few).startswith(
        "* Measured on a busy machine: other programs used 1.1 cores while the model with m1 was "
        "trained, 1.2 cores while the model with m2 was trained and 1.3 cores while"
    )
    assert busy_note(times | {"quiet": [TrainingTime(60.0, 0.0)]}) == (
        "* Measured on a busy machine: other programs used 1.0 to 1.3 cores while models were "
        "trained. Such a time does not compare models."
    )
