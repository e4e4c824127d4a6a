#!/usr/bin/env python3
"""Makes tests/seeds anew: of all inputs that the fuzzers have kept (fuzz/corpus and the present seeds), the forty that
together reach most. `.ci/nightly seeds` runs this.

libFuzzer says which edges of its program each input reaches (the control file of a merge). The input that adds the largest
share of its target's edges is taken first, then the one that adds most to that, and so on. Inputs that once failed,
`failed-...`, stay in any case."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS = ROOT / "tests/seeds"
COUNT = 40


def edges(target, folders):
    """By input: the edges that it reaches."""
    with tempfile.TemporaryDirectory() as scratch:
        control = pathlib.Path(scratch, "control")
        merged = pathlib.Path(scratch, "merged")
        merged.mkdir()
        command = ["cargo", "+nightly", "fuzz", "run", target, merged, *folders, "--"]
        command += ["-set_cover_merge=1", "-use_counters=0", "-max_len=1024", f"-merge_control_file={control}"]
        merging = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace")
        if merging.returncode:
            sys.exit(merging.stderr[-5000:])
        lines = control.read_text().splitlines()
    count = int(lines[0])
    files = lines[2 : 2 + count]
    reached = {}
    for line in lines[2 + count :]:
        if match := re.match(r"FT (\d+)((?: \d+)*)$", line):
            reached[pathlib.Path(files[int(match[1])])] = set(match[2].split())
    return reached


def choose(reached):
    """The inputs of all targets, by target and name, in the order in which they are taken; and what they reach."""
    chosen = [it for it in reached if it[1].name.startswith("failed-")]
    covered = {target: set() for target, _ in reached}
    for target, file in chosen:
        covered[target] |= reached[target, file]
    # Of what all inputs of its target reach, which is a thousand edges of the one and six thousand of the other.
    everything = {target: set().union(*(reached[it] for it in reached if it[0] == target)) for target in covered}
    adds = lambda it: len(reached[it] - covered[it[0]]) / len(everything[it[0]])
    while len(chosen) < COUNT and adds(best := max(sorted(reached), key=adds)):
        chosen.append(best)
        covered[best[0]] |= reached[best]
    return chosen, covered


reached = {}
for target in ("calls", "decoder"):
    folders = [folder for folder in (SEEDS / target, ROOT / "fuzz/corpus" / target) if folder.is_dir()]
    reached |= {(target, file): found for file, found in edges(target, folders).items()}
chosen, covered = choose(reached)
contents = [(target, file.name, file.read_bytes()) for target, file in chosen]
for target in covered:
    shutil.rmtree(SEEDS / target)
    (SEEDS / target).mkdir()
for target, name, bytes in contents:
    (SEEDS / target / name).write_bytes(bytes)
for target, edges_of_chosen in covered.items():
    inputs = [found for (of, _), found in reached.items() if of == target]
    taken, everything = sum(it[0] == target for it in chosen), len(set().union(*inputs))
    share = 100 * len(edges_of_chosen) / everything
    print(f"{target}: {taken} of {len(inputs)} inputs reach {len(edges_of_chosen)} of {everything} edges, {share:.1f} %")
