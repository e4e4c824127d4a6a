#!/usr/bin/env python3
"""Predicts what several threads do to one another, from how many cache lines they take from each other.

    benches/contention.py docs/benchmarks

A life on several threads takes as long as on one, and a transfer longer for each line that another processor has written
since. Which lines a call writes that other threads write as well stands in docs/design.md ("What threads write together").
How often another thread was there last follows from the number of map shards and of parked requests. The rest is measured:
the transfer (`transfer.json`) and the life on one thread (`W1t.json`). From these follow the rates on two threads, beside
which stand the measured ones (`W1t.json`, `W1x.json`), and those on 4, 8 and 16: a prediction, because no machine with so
many processors was there. Writes contention.md.
"""

import json
import math
import pathlib
import statistics
import sys

LIBRARY = "request_purgatory"

# Map shards: 64 for each processor, at least 1,024.
SHARDS = 1024

# The lines of one key that a visit of its map shard writes: the lock with the head of the table; the control bytes and the
# entry, which lie in two lines of the table.
OF_A_SHARD = 3
# W1x: the slot, which one thread fills and the other ends. (The list of freed slots moves once for 16 of them.)
OF_A_SLOT = 1 + 1 / 16
# With three keys: the list of one key, and the keys of the request, which lie apart from the slot.
OF_A_LIST = 2

# The part of the instructions of a life that park: `.ci/instructions` under callgrind, inclusive.
PARKS = {1: 0.53, 3: 0.52}


def last_was_another(threads, parked):
    """How often the thread that came to a map shard last is another one, if each has `parked` keys of its own, and comes
    to each of them once in a turn, in an order that has nothing to do with the shards. (With one thread, or one key in a
    shard, never; each of the others is as likely as this one.)"""
    return (threads - 1) / threads * (1 - math.exp(-threads * parked / SHARDS))


def last_was_the_other_side(parked):
    """The same where one thread parks and the other completes, each once for each key: of the visits between two of one
    thread to a key's shard, one is the other thread's for the same key, and those for `n` other keys come from either."""
    mean = parked / SHARDS
    if mean > 50:
        return 0.5
    chance = lambda n: math.exp(-mean) * mean**n / math.factorial(n)
    return sum(chance(n) * (n + 1) / (2 * n + 1) for n in range(120))


def lines_of_a_life(threads, parked):
    """W1t. Of three keys that neighbours share, two were visited by the life before: one shard is new, as with one key."""
    return OF_A_SHARD * last_was_another(threads, parked)


def lines_of_a_side(keys, parked):
    """W1x, the thread that parks or the one that completes."""
    return OF_A_SLOT + OF_A_SHARD * last_was_the_other_side(parked) + (OF_A_LIST if keys > 1 else 0)


class Measured:
    def __init__(self, path):
        data = json.loads(path.read_text())
        self.machine = data["about"]["processor"]
        self.outcomes = data["outcomes"]

    def median(self, candidate, metric, **parameters):
        for outcome in self.outcomes:
            if outcome["candidate"] == candidate and dict(map(tuple, outcome["parameters"])) == parameters:
                return statistics.median(outcome["rounds"][metric])
        return None


def rate_of_threads(alone, threads, parked, transfer):
    """Millions of lives a second; `alone` is a life on one thread, in nanoseconds."""
    return threads * 1e3 / (alone + lines_of_a_life(threads, parked) * transfer)


def rate_of_sides(alone, keys, parked, transfer):
    slower = max(PARKS[keys], 1 - PARKS[keys]) * alone
    return 1e3 / (slower + lines_of_a_side(keys, parked) * transfer)


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    transfers, w1t, w1x = (Measured(folder / f"{name}.json") for name in ("transfer", "W1t", "W1x"))
    transfer = transfers.median("fetch_add", "transfer", threads=2)
    text = ["# Contention: a model of what threads do to one another", ""]
    text += [
        f"A line that another processor has written takes {transfer:.0f} ns longer ({transfers.machine}; `transfer.json`). What a life",
        "takes on one thread, and the rates on two, are those of `W1t.json` and `W1x.json`. `benches/contention.py` computes the",
        "rest, and says how.",
        "",
        row("", "lines from another thread a life", "predicted [M lives/s]", "measured", "difference"),
        "|---|---:|---:|---:|---:|",
    ]
    worst, later = 0, []
    for keys in (1, 3):
        for parked in (1_000, 100_000):
            case = f"{keys} key{'s' * (keys > 1)}, {parked:,} parked"
            one = w1t.median(LIBRARY, "rate", keys=keys, parked=parked, threads=1)
            if not one:
                continue
            alone = 1e3 / one
            two = w1t.median(LIBRARY, "rate", keys=keys, parked=parked, threads=2)
            sides = w1x.median(LIBRARY, "rate", keys=keys, parked=parked)
            found = [
                (f"W1t, two threads, {case}", lines_of_a_life(2, parked), rate_of_threads(alone, 2, parked, transfer), two),
                (f"W1x, {case}", lines_of_a_side(keys, parked), rate_of_sides(alone, keys, parked, transfer), sides),
            ]
            for name, lines, predicted, measured in found:
                off = predicted / measured - 1
                worst = max(worst, abs(off))
                text.append(row(name, f"{lines:.2f}", f"{predicted:.2f}", f"{measured:.2f}", f"{off:+.0%}"))
            scaling = [rate_of_threads(alone, threads, parked, transfer) * alone / 1e3 for threads in (2, 4, 8, 16)]
            later.append(row(case, *(f"{times:.1f}" for times in scaling)))
    text += ["", f"The largest difference is {worst:.0%}.", ""]
    text += [
        "**A prediction, not a measurement:** lives on several threads, each with keys of its own, as multiples of one thread's",
        "rate. It knows one cost of a transfer. Where processors lie further apart, a transfer takes longer (100 to 300 ns between",
        "sockets), and the lines of the table say how much a life does. It knows no queue at a line: two threads meet at one of",
        f"{SHARDS:,} map shards in a few of a thousand visits.",
        "",
        row("threads", "2", "4", "8", "16"),
        "|---|---:|---:|---:|---:|",
        *later,
    ]
    (folder / "contention.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
