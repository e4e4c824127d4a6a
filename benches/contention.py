#!/usr/bin/env python3
"""Predicts what several threads do to one another, from how many cache lines they take from each other.

    cargo bench --bench compare -- --only W1t,W1x --candidates request_purgatory --parked 1000,2000,100000,200000 \\
        --rounds 33 --out docs/benchmarks/contention
    benches/contention.py docs/benchmarks

A life on several threads takes as long as on one, and a transfer longer for each line that another processor has written
since. Which lines a call writes that other threads write as well stands in docs/design.md ("What threads write together").
How often another thread was there last follows from the number of map shards and of parked requests. The rest is measured:
the life on one thread (`W1t.json`), and the transfer, before and after each round on two threads, because a virtual machine's
processors move. From these follow the rates on two threads, beside which stand the measured ones, of this run and of the
published tables; and those on 4, 8 and 16: a prediction, because no machine with so many processors was there. Writes
contention.md.
"""

import itertools
import json
import math
import pathlib
import statistics
import sys

from measured import LIBRARY

# Map shards: 64 for each processor, at least 1,024.
SHARDS = 1024

# The lines of one key that a visit of its map shard writes: the lock with the head of the table; the control bytes and the
# entry, which lie in two lines of the table.
OF_A_SHARD = 3
# W1x: the slot, which one thread fills and the other ends. (The list of freed slots moves once for 16 of them.)
OF_A_SLOT = 1 + 1 / 16
# With three keys: the list of one key, and the keys of the request, which lie apart from the slot.
OF_A_LIST = 2

# W1x, the part of the instructions of a life that the parking thread executes: the park, and the end of an earlier request's
# timer and slot, which the completing thread leaves to it (`.ci/instructions` under callgrind, inclusive).
PARKS = {1: 0.62, 3: 0.51}

# A transfer over this many nanoseconds says that the processors lay far apart: they share no cache.
FAR = 60

# A median of fewer rounds says nothing.
LEAST = 3


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


class Rounds:
    """The library's rounds of a workload, by their parameters: the run with a life for twice as many parked, and the tables'."""

    def __init__(self, folder, name):
        self.cases = {}
        for path in folder / "contention" / f"{name}.json", folder / f"{name}.json":
            data = json.loads(path.read_text())
            self.machine = data["about"]["processor"]
            for entry in data["outcomes"]:
                if entry["candidate"] == LIBRARY:
                    case = tuple(value for _, value in entry["parameters"])
                    rounds = zip(entry["rounds"]["rate"], entry["rounds"].get("transfer") or itertools.repeat(None))
                    self.cases.setdefault(case, []).append(list(rounds))

    def life(self, keys, parked):
        """Nanoseconds on one thread, in the run that has all."""
        return 1e3 / statistics.median(rate for rate, _ in self.cases[keys, parked, 1][0])

    def by_distance(self, *case):
        """Of the rounds during which the processors stayed where they were: where, the transfer and the rate (medians)."""
        rounds = [(transfer, rate) for run in self.cases[case] for rate, transfer in run if transfer]
        for where, there in ("near", lambda transfer: transfer < FAR), ("far", lambda transfer: transfer >= FAR):
            found = [pair for pair in rounds if there(pair[0])]
            if len(found) >= LEAST:
                yield where, len(found), *map(statistics.median, zip(*found))


def life_beside(life, threads, parked, transfer):
    """W1t: nanoseconds of a life. `life` is one on one thread: near, with as many parked as all threads together, because
    the caches that they share hold no more; far, with its own, because they share none."""
    return life + lines_of_a_life(threads, parked) * transfer


def life_between(hot, cold, keys, parked, transfer):
    """W1x: nanoseconds of the slower side. `hot` is a life whose request is still in the caches, and `cold` what it takes longer
    if it is not; of what is not, one side finds half where the other has just had it."""
    share = max(PARKS[keys], 1 - PARKS[keys])
    return share * hot + cold / 2 + lines_of_a_side(keys, parked) * transfer


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    w1t, w1x = Rounds(folder, "W1t"), Rounds(folder, "W1x")
    text = ["# Contention: a model of what threads do to one another", ""]
    text += [
        f"Written by `benches/contention.py`, which says how, from the rounds of W1t and W1x ({w1t.machine}, two virtual processors).",
        "The host moves these: near, a line that the other processor has written takes 20 to 30 ns to come, far over 100. Each round",
        "is told by the transfer before and after it; rounds in which it changed are left out. Rates in millions of lives a second.",
        "",
        row("", "processors", "rounds", "transfer [ns]", "lines that come, a life", "predicted", "measured", "difference"),
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    worst, later = {"near": 0, "far": 0}, []
    for keys in (1, 3):
        hot = w1t.life(keys, 1_000)
        for parked in (1_000, 100_000):
            case = f"{keys} key{'s' * (keys > 1)}, {parked:,} parked"
            alone = w1t.life(keys, parked)
            cold = alone - hot
            lives = {"near": w1t.life(keys, 2 * parked), "far": alone}
            found = [
                (f"W1t, two threads, {case}", lines_of_a_life(2, parked), where, count, transfer, 2e3 / life_beside(lives[where], 2, parked, transfer), rate)
                for where, count, transfer, rate in w1t.by_distance(keys, parked, 2)
            ]
            found += [
                (f"W1x, {case}", lines_of_a_side(keys, parked), where, count, transfer, 1e3 / life_between(hot, cold, keys, parked, transfer), rate)
                for where, count, transfer, rate in w1x.by_distance(keys, parked)
            ]
            for name, lines, where, count, transfer, predicted, measured in found:
                off = predicted / measured - 1
                worst[where] = max(worst[where], abs(off))
                text.append(row(name, where, str(count), f"{transfer:.0f}", f"{lines:.2f}", f"{predicted:.2f}", f"{measured:.2f}", f"{off:+.0%}"))
            for where, transfer in ("near", 20), ("far", 130):
                times = [threads * alone / life_beside(lives[where], threads, parked, transfer) for threads in (2, 4, 8, 16)]
                later.append(row(f"{case}, {where}", *(f"{value:.1f}" for value in times)))
    text += [
        "",
        f"The largest difference is {worst['near']:.0%} near and {worst['far']:.0%} far.",
        "",
    ]
    text += [
        "**A prediction, not a measurement:** lives on several threads, each with keys of its own, as multiples of one thread's",
        "rate, with a transfer of 20 ns (near: processors that share a cache) and of 130 ns (far). Of the cache, each thread has as",
        f"much as here on two. The model knows no queue at a line: two threads meet at one of {SHARDS:,} map shards in a few of a",
        "thousand visits.",
        "",
        row("threads", "2", "4", "8", "16"),
        "|---|---:|---:|---:|---:|",
        *later,
    ]
    (folder / "contention.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
