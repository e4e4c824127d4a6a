#!/usr/bin/env python3
"""Makes tests/seeds anew: of all inputs that the fuzzers have kept (fuzz/corpus and the present seeds), the twenty of each
target that together reach most. `.ci/nightly seeds` runs this.

libFuzzer says which edges of the program each input reaches (its control file of a merge). The input that adds most is taken
first, then the one that adds most to that, and so on. Inputs that once failed, `failed-...`, stay in any case."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNT = 20


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


for target in ("calls", "decoder"):
    seeds = ROOT / "tests/seeds" / target
    folders = [folder for folder in (seeds, ROOT / "fuzz/corpus" / target) if folder.is_dir()]
    reached = edges(target, folders)
    everything = set().union(*reached.values())
    chosen = [file for file in reached if file.name.startswith("failed-")]
    covered = set().union(*(reached[file] for file in chosen))
    for _ in range(COUNT):
        best = max(sorted(reached), key=lambda file: len(reached[file] - covered))
        if not reached[best] - covered:
            break
        chosen.append(best)
        covered |= reached[best]
    contents = {file.name: file.read_bytes() for file in chosen}
    shutil.rmtree(seeds)
    seeds.mkdir()
    for name, bytes in contents.items():
        (seeds / name).write_bytes(bytes)
    share = 100 * len(covered) / len(everything)
    print(f"{target}: {len(chosen)} of {len(reached)} inputs reach {len(covered)} of {len(everything)} edges, {share:.1f} %")
