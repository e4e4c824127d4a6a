#!/usr/bin/env python3
"""Holds what `cargo bench --bench compare -- --out FOLDER` has measured against the targets.

    benches/targets.py docs/benchmarks

Writes FOLDER/targets.md: for each target the figure and by how much it is missed, and for every figure in which a peer is
better, by how much. All are of the medians of one run, but for the instructions, which .ci/instructions counts.
"""

import functools
import pathlib
import re
import sys

from measured import LIBRARY, read, short

WHEEL, PORT = "tm_wheel", "straight_port"
# Candidates that are no peers: bounds, and the library in another way.
NO_PEERS = {LIBRARY, "floor", "harness", "resolved_keys", "resolved_key", "after_lock", "full_check", "wait"}
# The peers of W13.
CALLS = ("pending_requests", "dash_map_oneshot", "may_waiter")
AT_MOST, AT_LEAST = "at most", "at least"
INSTRUCTIONS = pathlib.Path(__file__).with_name("instructions.txt")

# How many instructions a call may take.
COUNTED = {
    "life-of-one-key": 950, "life-of-three-keys": 1600, "life-on-three-shared-keys": 1800, "life-on-a-resolved-key": 720,
    "check-in-vain": 215, "life-cancelled": 1150,
}  # fmt: skip


class Run:
    def __init__(self, folder):
        self.folder = folder

    @functools.cache
    def read(self, workload):
        path = self.folder / f"{workload}.json"
        return read(path) if path.exists() else ({}, [])

    def find(self, workload, candidate, metric, **case):
        _, outcomes = self.read(workload)
        of_case = (it for it in outcomes if it.candidate == candidate and case.items() <= dict(it.case).items())
        return next((it.median(metric) for it in of_case if it.rounds.get(metric)), None)

    def median(self, workload, candidate, metric, **case):
        found = self.find(workload, candidate, metric, **case)
        return found if found is not None else sys.exit(f"{workload} has no {metric} of {candidate} with {case}")

    def ratio_if_measured(self, workload, metric, of, to, **case):
        of, to = (self.find(workload, candidate, metric, **case) for candidate in (of, to))
        return of / to if of and to else None

    def ratio(self, workload, metric, of, to, **case):
        return self.median(workload, of, metric, **case) / self.median(workload, to, metric, **case)

    def best_peer(self, workload, metric, peers, **case):
        return min(peers, key=lambda peer: self.median(workload, peer, metric, **case))


def number_of(keys):
    return "1 key" if keys == 1 else f"{keys} keys"


def targets(run):
    """Workload, what is meant, which bound, the bound, the figure (None: not measured), its unit (a ratio has none)."""
    for keys, of_floor in ((1, 1.08), (3, 1.36)):
        figure = run.ratio("W1", "life", LIBRARY, "floor", keys=keys, parked=1000)
        yield "W1", f"{number_of(keys)}, 1,000 parked: time beside `floor`'s", AT_MOST, of_floor, figure, ""
    for keys, parked, least in ((1, 10**3, 1.2), (3, 10**3, 1.06), (1, 10**5, 1.25), (3, 10**5, 1), (1, 10**6, 1.05), (3, 10**6, 1)):
        figure = run.ratio("W1", "life", WHEEL, LIBRARY, keys=keys, parked=parked)
        yield "W1", f"{number_of(keys)}, {parked:,} parked: times as fast as `{WHEEL}`", AT_LEAST, least, figure, ""
    for keys, least in ((1, 3), (3, 2.1)):
        for parked in (10**3, 10**5):
            case = {"keys": keys, "parked": parked, "threads": 2}
            what = f"{number_of(keys)}, {parked:,} parked, two threads: "
            # With n threads at s times one's rate, a life takes n / s times the processor time.
            figure = 2 / run.median("W1t", LIBRARY, "scaling", **case)
            yield "W1t", what + "processor time of a life beside one thread's", AT_MOST, 1.08, figure, ""
            yield "W1t", what + f"rate beside `{WHEEL}`'s", AT_LEAST, least, run.ratio("W1t", "rate", LIBRARY, WHEEL, **case), ""
    for keys, of_port, of_wheel in ((1, 1.9, 1.5), (3, 1.6, 1.25)):
        what = f"{number_of(keys)}, 1,000 parked: rate beside"
        for peer, bound in ((PORT, of_port), (WHEEL, of_wheel)):
            figure = run.ratio("W1x", "rate", LIBRARY, peer, keys=keys, parked=1000)
            yield "W1x", f"{what} `{peer}`'s", AT_LEAST, bound, figure, ""
    for phase in ("start", "stop", "advancing per expiry", "worst advance"):
        best = run.best_peer("W2", phase, (WHEEL, "hash_wheel", "nexus_wheel"))
        yield "W2", f"{phase}: time beside `{best}`'s, the best other wheel", AT_MOST, 1, run.ratio("W2", phase, LIBRARY, best), ""
    yield "W2", f"all of it: time beside `{WHEEL}`'s", AT_MOST, 1, run.ratio("W2", "sum per timer", LIBRARY, WHEEL), ""
    worst = run.find("W2", LIBRARY, "worst advance", timeout_ms=30_000)
    yield "W2", "one timeout: worst advance", AT_MOST, 120, worst, "µs"
    completed = run.median("W3", LIBRARY, "first deadline to last completion")
    yield "W3", "from the first deadline to the last completion", AT_MOST, 115, completed, "ms"
    yield "W3", "from there until no watch is left", AT_MOST, 180, run.median("W3", LIBRARY, "until no watch is left") - completed, "ms"
    for peer, least in ((PORT, 1.6), (WHEEL, 1.25)):
        figure = run.ratio("W4", "highest rate sustained", LIBRARY, peer, median_ms=20)
        yield "W4", f"highest rate beside `{peer}`'s", AT_LEAST, least, figure, ""
    for median in (20, 200):
        for rate, most in ((50_000, 1), (200_000, 1), (500_000, 1)):
            case = {"median_ms": median, "rate": rate}
            best = run.best_peer("W4", "CPU per 1,000 requests", (WHEEL, PORT, "btree_map", "delay_queue"), **case)
            figure = run.ratio("W4", "CPU per 1,000 requests", LIBRARY, best, **case)
            yield "W4", f"{rate:,} a second, {median} ms: processor time beside `{best}`'s, the best peer", AT_MOST, most, figure, ""
    yield "W5", "99.9 % of the calls", AT_MOST, 10, run.median("W5", LIBRARY, "p99.9"), "µs"
    yield "W5", "the longest call beside the longest pause of an idle thread", AT_MOST, 1, run.median("W5", LIBRARY, "max") / run.median("W5", LIBRARY, "idle max"), ""
    for keys, most in ((1, 130), (3, 200)):
        yield "W6", f"a million, {number_of(keys)}", AT_MOST, most, run.median("W6", LIBRARY, "memory per request", keys=keys, parked=10**6), "bytes"
    yield "W7", "10,000 parked: times as fast as a check of all", AT_LEAST, 500, run.ratio("W7", "advance", "full_check", LIBRARY, parked=10_000), ""
    for parked in (10**3, 10**5, 10**6):
        yield "W8", f"{parked:,} parked: time beside `floor`'s", AT_MOST, 1.1, run.ratio("W8", "check", LIBRARY, "floor", parked=parked), ""
        yield "W8", f"{parked:,} parked, a resolved key: time beside a plain one's", AT_MOST, 0.5, run.ratio("W8", "check", "resolved_key", LIBRARY, parked=parked), ""
    yield "W9", "1,000 parked: time beside `floor`'s", AT_MOST, 0.71, run.ratio("W9", "life", "resolved_keys", "floor", parked=1000), ""
    yield "W10", "10,000 workers: a push", AT_MOST, 2, run.median("W10", LIBRARY, "push", workers=10_000) / 1000, "µs"
    yield "W10", "10,000 workers: examinations for a push", AT_MOST, 3, run.median("W10", LIBRARY, "examinations per push", workers=10_000), ""
    figure = run.ratio_if_measured("W10", "take and give back", LIBRARY, "tokio_notify", workers=0)
    yield "W10", "no workers: to take and give back, beside a queue with `tokio_notify`", AT_MOST, 1.3, figure, ""
    for keys in (1, 10):
        for peer, most in (("wait", 1.2), ("event_listener", 1.5)):
            yield "W11", f"{number_of(keys)}: time beside `{peer}`'s", AT_MOST, most, run.ratio("W11", "life", LIBRARY, peer, keys=keys), ""
    for candidate in ("waits", "timer", "tracker"):
        for metric, most, unit, scale in (("memory of each", 24, "KiB", 1024), ("threads before a deadline", 0, "", 1), ("new", 5, "µs", 1), ("first park", 120, "µs", 1)):
            yield "W12", f"`{candidate}`: {metric}", AT_MOST, most, run.median("W12", candidate, metric) / scale, unit
    for threads in (1, 2):
        ratios = [run.ratio_if_measured("W13", "life", peer, LIBRARY, threads=threads) for peer in CALLS]
        figure = None if None in ratios else min(ratios)
        yield "W13", f"{threads} thread{'s' * (threads > 1)}: times as fast as the best peer", AT_LEAST, 1.2, figure, ""
    counted = dict(line.split()[:2] for line in INSTRUCTIONS.read_text().splitlines() if not line.startswith("#"))
    for call, most in COUNTED.items():
        yield "instructions", call.replace("-", " "), AT_MOST, most, int(counted[call]), ""


def better_peers(run):
    """Workload, case, metric, peer, and the part of this library's figure that the peer's is (of a rate, the other way)."""
    names = {path.stem for path in run.folder.glob("*.json")}
    for workload in sorted(names, key=lambda name: [part.zfill(2) for part in re.split(r"(\d+)", name)]):
        about, outcomes = run.read(workload)
        for metric in about["metrics"]:
            for outcome in outcomes:
                if outcome.candidate in NO_PEERS or metric["better"] == "neither":
                    continue
                case, name = dict(outcome.case), metric["name"]
                own, other = run.find(workload, LIBRARY, name, **case), outcome.median(name)
                if own and other:
                    part = other / own if metric["better"] == "less" else own / other
                    if part < 0.995:
                        yield workload, " ".join(f"{key}={value:,}" for key, value in case.items()), name, f"`{outcome.candidate}`", part


def trimmed(value):
    """Short, and no zeros behind what counts."""
    text = short(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def table(heads, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows]) + "\n"


def target_rows(run):
    for workload, what, bound, limit, figure, unit in targets(run):
        must = f"{bound} {trimmed(limit)} {unit}".strip()
        if figure is None:
            yield [workload, what, must, "not yet measured", ""]
            continue
        is_missed = figure > limit if bound == AT_MOST else figure < limit
        measured = f"{trimmed(figure)} {unit}".strip()
        by = f"{abs(figure / limit - 1) * 100:.1f} %" if is_missed and limit else "all" if is_missed else ""
        yield [workload, what, must, f"**{measured}**" if is_missed else measured, by]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = Run(pathlib.Path(sys.argv[1]))
    rows = list(target_rows(run))
    missed = sum(bool(row[-1]) for row in rows)
    about, _ = run.read("W1")
    text = f"# The targets\n\n{missed} of {len(rows)} are missed. "
    text += "Each figure is of the medians of one run, but for the instructions, which are counted.\n\n"
    text += table(["", "", "must", "measured", "missed by"], rows)
    text += "\n## Where a peer is better\n\nAll figures of all tables in which one is: its time, memory or work beside this library's.\n\n"
    text += table(["", "case", "", "peer", "beside ours"], ([*row, trimmed(part)] for *row, part in better_peers(run)))
    text += f"\nOn {about['processor']}, {about['cores']} cores, {about['system']}, {about['compiler']}.\n"
    (run.folder / "targets.md").write_text(text)
    print(f"{missed} of {len(rows)} targets are missed: {run.folder / 'targets.md'}")


if __name__ == "__main__":
    main()
