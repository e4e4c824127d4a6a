#!/usr/bin/env python3
"""Plots what `.ci/cluster-faults scale` prints, from stdin, as docs/guide/cluster-scale.svg (or the file that is named).

    .ci/install plots && .ci/cluster-faults scale | .venv/bin/python cluster/simulation/scale/plot.py
"""

import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")
settings = {"svg.fonttype": "none", "svg.hashsalt": "scale", "font.size": 10, "font.sans-serif": ["DejaVu Sans"]}
matplotlib.rcParams.update(settings)
import matplotlib.pyplot as plt

out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[4] / "docs/guide/cluster-scale.svg"
rows = {}
for line in sys.stdin:
    if found := re.search(r"\| (Redis, \w+|NATS) (\|(?: [\d.]+ \|){13})", line):
        row = tuple(map(float, re.findall(r"[\d.]+", found[2])))
        rows.setdefault(found[1], {})[row[0]] = row
panels = [("messages in a second", lambda row: row[1] + row[2]), ("keys read in a second", lambda row: row[3]),
          ("keys read in the worst second,\nafter 30 s without the engine", lambda row: row[10]),
          ("kB in a second", lambda row: row[0] * row[7])]  # fmt: skip
figure, axes = plt.subplots(2, 2, figsize=(8, 6.4), layout="constrained")
axes = axes.flatten()
for axis, (title, value) in zip(axes, panels):
    for (engine, points), colour in zip(rows.items(), ("#d1351f", "#e8a317", "#1f77b4")):
        nodes = sorted(points)
        axis.plot(nodes, [value(points[count]) for count in nodes], marker="o", label=engine, color=colour)
    axis.set(xscale="log", yscale="log", xlabel="nodes", title=title)
    axis.grid(alpha=0.3)
    # (Each tick is an element of the file, which is a part of the documentation.)
    axis.minorticks_off()
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_major_formatter("{x:,.0f}")
axes[0].legend()
# Of NATS, each key is a request to the leader of the stream.
for axis in axes[1:3]:
    axis.axhspan(10_000, 30_000, color="#1f77b4", alpha=0.15, lw=0)
    axis.text(10, 17_000, "what one NATS answers", color="#1f77b4", va="center", fontsize=8)
figure.savefig(out, metadata=dict.fromkeys(["Creator", "Date", "Format", "Type"]))
# Without what a browser has no use for.
text = re.sub(r"<!--.*?-->|<!DOCTYPE[^>]*>", "", out.read_text(), flags=re.S)
out.write_text(re.sub(r">\s+<", "><", re.sub(r"\s+", " ", text)).strip() + "\n")
print(f"{out.name}: {', '.join(rows)}")
