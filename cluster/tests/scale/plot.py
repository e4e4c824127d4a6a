#!/usr/bin/env python3
"""Plots what `.ci/cluster-faults scale` prints, from stdin, as docs/guide/cluster-scale.svg (or the file that is named).

    .ci/install plots && .ci/cluster-faults scale | .venv/bin/python cluster/tests/scale/plot.py
"""

import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scale", "font.size": 10})
import matplotlib.pyplot as plt

out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[3] / "docs/guide/cluster-scale.svg"
rows = {}
for line in sys.stdin:
    if found := re.search(r"\| (Redis, \w+|NATS) (\|(?: [\d.]+ \|){11})", line):
        row = tuple(map(float, re.findall(r"[\d.]+", found[2])))
        rows.setdefault(found[1], {})[row[0]] = row
panels = [("messages in a second", lambda row: row[1] + row[2]), ("keys read in a second", lambda row: row[3]),
          ("keys read in the worst second,\nafter 30 s without the engine", lambda row: row[8])]  # fmt: skip
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
for axis, (title, value) in zip(axes, panels):
    for (engine, points), colour in zip(rows.items(), ("#d1351f", "#e8a317", "#1f77b4")):
        nodes = sorted(points)
        axis.plot(nodes, [value(points[count]) for count in nodes], marker="o", label=engine, color=colour)
    axis.set(xscale="log", yscale="log", xlabel="nodes", title=title)
    axis.grid(alpha=0.3)
axes[0].legend()
# Of NATS, each key is a request to the leader of the stream.
for axis in axes[1:]:
    axis.axhspan(10_000, 30_000, color="#1f77b4", alpha=0.15, lw=0)
    axis.text(10, 17_000, "what one NATS answers", color="#1f77b4", va="center", fontsize=8)
figure.savefig(out, metadata={"Date": None})
print(f"{out.name}: {', '.join(rows)}")
