"""What `cargo bench --bench compare -- --out FOLDER` has measured, for the scripts beside this one."""

import json
import statistics

LIBRARY = "request_purgatory"


class Outcome:
    """The rounds of one candidate in one case."""

    def __init__(self, entry):
        self.candidate, self.case = entry["candidate"], tuple(map(tuple, entry["parameters"]))
        self.rounds = {name: [value for value in values if value is not None] for name, values in entry["rounds"].items()}

    def median(self, metric):
        values = self.rounds.get(metric)
        return statistics.median(values) if values else None


def read(path):
    """What is said of a workload, and its outcomes."""
    data = json.loads(path.read_text())
    return data["about"], [Outcome(entry) for entry in data["outcomes"]]


def short(value):
    """With about three digits that count."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
