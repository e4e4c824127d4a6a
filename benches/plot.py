#!/usr/bin/env python3
"""Makes pages and plots of what `cargo bench --bench compare -- --out FOLDER` has measured.

    .ci/install plots && .venv/bin/python benches/plot.py docs/benchmarks

For each NAME.json a page NAME.md with the tables and its plots, as SVG (with `--png` as PNG beside it, to look at); and
results.md, which lists the pages.
"""

import argparse
import pathlib
import re
import statistics

import matplotlib
import matplotlib.ticker

from measured import LIBRARY, read, short

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "compare", "font.size": 10, "axes.axisbelow": True})
import matplotlib.pyplot as plt

# The plots of each workload: bars of a metric, the cases in groups; bars of several metrics, a plot for each case; lines
# of a metric along a parameter, a plot for each setting of the others.
PLOTS = {
    "W1": [("bars", "life"), ("lines", "life", "parked")],
    "W1t": [("bars", "rate"), ("lines", "rate", "threads")],
    "W1x": [("bars", "rate"), ("lines", "rate", "threads")],
    "W2": [("bars", "sum per timer"), ("metrics", "time [ns]", ["start", "stop", "advancing per expiry"]), ("bars", "worst advance")],
    "W3": [
        ("bars", "first deadline to last completion"),
        ("bars", "CPU per request"),
        ("metrics", "lateness [ms]", ["late p50", "late p99", "late max"]),
        ("lines", "first deadline to last completion", "threads"),
    ],
    "W4": [
        ("lines", "CPU per 1,000 requests", "rate"),
        ("lines", "CPU per 1,000 requests", "threads"),
        ("lines", "highest rate sustained", "threads"),
        ("metrics", "processor time per 1,000 requests [ms]", ["arriver", "completer", "timer", "completions"]),
        ("metrics", "sleeps per second", ["arriver sleeps", "completer sleeps", "timer sleeps", "completions sleeps"]),
        ("bars", "highest rate sustained"),
    ],
    "W5": [("metrics", "park call, and idle thread [µs]", ["p50", "p99", "p99.9", "max", "idle p99.9", "idle max"])],
    "W6": [("bars", "memory per request")],
    "W7": [("lines", "advance", "parked")],
    "W8": [("bars", "check")],
    "W9": [("bars", "life")],
    "W10": [("bars", "push"), ("bars", "push, take, wait again"), ("bars", "take and give back")],
    "W10t": [("lines", "rate", "threads")],
    "W11": [("bars", "life"), ("bars", "listen and drop")],
    "W12": [("bars", "memory of each"), ("bars", "new")],
    "W13": [("bars", "life"), ("bars", "rate")],
    "handles": [("lines", "force_complete", "threads")],
    "transfer": [("bars", "transfer")],
}

# The same candidate has the same colour in every plot; the others take what is left.
COLOURS = {
    "request_purgatory": "#d1351f", "resolved_keys": "#7a1f12", "resolved_key": "#7a1f12",
    "full_check": "#f0927f", "after_lock": "#f2b134", "floor": "#9a9a9a", "harness": "#c4c4c4", "tm_wheel": "#1f77b4",
    "btree_map": "#2ca02c", "binary_heap": "#98c379",
    "delay_queue": "#9467bd", "straight_port": "#8c564b",
    "unpurged_port": "#c49c94", "tokio_idiom": "#e8a317", "hash_wheel": "#17becf",
    "nexus_wheel": "#e377c2", "nexus_timeout_queue": "#f7b6d2", "wait": "#7a1f12",
    "tokio_threads": "#f2b134", "tokio_alt_timer": "#b8860b", "bb8": "#8c564b",
    "pending_requests": "#9467bd", "dash_map_oneshot": "#1f77b4", "may_waiter": "#2ca02c",
    "event_listener": "#1f77b4", "tokio_notify": "#e8a317", "async_channel": "#2ca02c",
}  # fmt: skip


def label(case):
    return " ".join(f"{name}={value:,}" for name, value in case)


def unique(items):
    return list(dict.fromkeys(items))


class Page:
    def __init__(self, path):
        self.folder, self.name = path.parent, path.stem
        self.about, self.outcomes = read(path)
        self.metrics = {metric["name"]: metric for metric in self.about["metrics"]}
        self.cases = unique(outcome.case for outcome in self.outcomes)
        self.files = []

    def find(self, candidate, case):
        return next((it for it in self.outcomes if it.candidate == candidate and it.case == case), None)

    def head(self, metric):
        return f"{metric} [{self.metrics[metric]['unit']}]"

    # Tables.

    def cell(self, outcome, metric):
        """`271 ±2% 1.00x`: the median, half the spread, how many times worse than the library."""
        median = outcome.median(metric) if outcome else None
        if median is None:
            return ""
        parts, values = [short(median)], outcome.rounds[metric]
        if median:
            parts.append(f"±{min((max(values) - min(values)) / 2 / abs(median) * 100, 999):.0f}%")
        library, better = self.find(LIBRARY, outcome.case), self.metrics[metric]["better"]
        own = library.median(metric) if library else None
        if own and median and better != "neither":
            parts.append(f"{median / own if better == 'less' else own / median:.2f}x")
        return " ".join(parts)

    def table(self, title, heads, columns):
        """A row for each candidate; `columns` are pairs of case and metric."""
        rows = [["", *heads]]
        for candidate in unique(outcome.candidate for outcome in self.outcomes):
            cells = [self.cell(self.find(candidate, case), metric) for case, metric in columns]
            if any(cells):
                rows.append([candidate, *cells])
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["| " + " | ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(row, widths))) + " |" for row in rows]
        lines.insert(1, "|" + "|".join(("-" * (width + 1) + ":") if at else "-" * (width + 2) for at, width in enumerate(widths)) + "|")
        return f"{title}:\n\n" + "\n".join(lines) + "\n"

    def tables(self):
        """With one metric, a case a column; else a table for each case."""
        if len(self.metrics) == 1:
            (metric,) = self.metrics
            return [self.table(self.head(metric), map(label, self.cases), [(case, metric) for case in self.cases])]
        found = []
        for case in self.cases:
            metrics = [name for name in self.metrics if any(it.case == case and it.rounds.get(name) for it in self.outcomes)]
            found.append(self.table(label(case), map(self.head, metrics), [(case, metric) for metric in metrics]))
        return found

    # Plots.

    def begin(self, subtitle, y_label, values, groups=0):
        figure, axes = plt.subplots(figsize=(max(9, 2.4 + 1.1 * groups), 4.4), layout="constrained")
        axes.set_title(f"{self.name}: {self.about['title']}\n", loc="left", fontsize=12, fontweight="bold")
        rounds = max((len(values) for outcome in self.outcomes for values in outcome.rounds.values()), default=0)
        axes.text(0, 1.02, f"{subtitle}; median of {rounds} rounds, from least to most", transform=axes.transAxes, color="#666666")
        values = [value for value in values if value > 0]
        if values and max(values) / min(values) > 15:
            axes.set_yscale("log")
            steps = (1, 2, 5) if max(values) / min(values) < 300 else (1,)
            axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=steps, numticks=30))
            axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
            y_label += ", logarithmic"
        axes.set_ylabel(y_label)
        axes.grid(axis="y", color="#e3e3e3")
        axes.spines[["top", "right"]].set_visible(False)
        return figure, axes

    def finish(self, figure, axes, parts, png):
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        words = re.findall(r"[a-z0-9]+", " ".join(parts), re.I)
        file = "-".join([self.name, *map(str.lower, words)])
        figure.savefig(self.folder / f"{file}.svg", metadata={"Date": None})
        if png:
            figure.savefig(self.folder / f"{file}.png", dpi=80)
        plt.close(figure)
        self.files.append((f"{file}.svg", axes.get_title(loc="left").strip()))

    def series(self, places, value_of):
        """Each candidate with medians, leasts and mosts, at the places where it has values."""
        for candidate in unique(outcome.candidate for outcome in self.outcomes):
            points = []
            for place, (case, metric) in enumerate(places):
                outcome = self.find(candidate, case)
                if outcome and outcome.rounds.get(metric):
                    values = outcome.rounds[metric]
                    points.append((value_of(place), statistics.median(values), min(values), max(values)))
            if points:
                yield candidate, COLOURS.get(candidate, "#444444"), points

    def values(self, places):
        return [value for it in self.outcomes for case, metric in places if it.case == case for value in it.rounds.get(metric, [])]

    def grouped_bars(self, places, names, subtitle, y_label, parts, png):
        drawn = list(self.series(places, float))
        if not drawn:
            return
        figure, axes = self.begin(subtitle, y_label, self.values(places), len(places))
        width = 0.86 / len(drawn)
        for number, (candidate, colour, points) in enumerate(drawn):
            where = [place + (number - len(drawn) / 2 + 0.5) * width for place, *_ in points]
            medians = [median for _, median, _, _ in points]
            ends = [[median - least for _, median, least, _ in points], [most - median for _, median, _, most in points]]
            bars = axes.bar(where, medians, width * 0.92, color=colour, label=candidate, yerr=ends, error_kw={"lw": 1})
            if len(drawn) * len(places) <= 14:
                axes.bar_label(bars, map(short, medians), padding=3, fontsize=9)
        names = [re.sub(r",000\b", "k", re.sub(r",000,000\b", "M", name)).replace(" ", "\n") for name in names]
        axes.set_xticks(range(len(places)), names)
        self.finish(figure, axes, parts, png)

    def bars(self, metric, png):
        cases = [case for case in self.cases if self.values([(case, metric)])]
        if cases:
            self.grouped_bars([(case, metric) for case in cases], map(label, cases), metric, self.head(metric), [metric], png)

    def metrics_of(self, case, y_label, metrics, png):
        self.grouped_bars([(case, name) for name in metrics], metrics, label(case), y_label, [y_label, label(case)], png)

    def lines(self, metric, along, png):
        settings = unique(tuple(pair for pair in case if pair[0] != along) for case in self.cases if along in dict(case))
        for setting in settings:
            of_setting = [case for case in self.cases if along in dict(case) and tuple(pair for pair in case if pair[0] != along) == setting]
            cases = [case for case in of_setting if self.values([(case, metric)])]
            places = [(case, metric) for case in cases]
            if len(cases) < 2:
                continue
            across = [dict(case)[along] for case in cases]
            figure, axes = self.begin(label(setting) or metric, self.head(metric), self.values(places))
            for candidate, colour, points in self.series(places, lambda place: across[place]):
                where, medians, least, most = zip(*points)
                axes.plot(where, medians, "o-", color=colour, label=candidate)
                axes.vlines(where, least, most, color=colour)
            if max(across) / min(across) > 15:
                axes.set_xscale("log")
            axes.set_xticks(across, [f"{place:,}" for place in across])
            axes.minorticks_off()
            axes.set_xlabel(along)
            self.finish(figure, axes, [metric, along, label(setting)], png)

    def write(self, png):
        for old in self.folder.glob(f"{self.name}-*.svg"):
            old.unlink()
        for kind, *what in PLOTS.get(self.name, []):
            if kind == "metrics":
                for case in self.cases:
                    self.metrics_of(case, *what, png=png)
            else:
                getattr(self, kind)(*what, png=png)
        about = self.about
        rounds = max(len(values) for outcome in self.outcomes for values in outcome.rounds.values())
        ratio = f"; `x`: how many times worse than {LIBRARY}" if any(it.candidate == LIBRARY for it in self.outcomes) else ""
        text = f"# {self.name}: {about['title']}\n\nMedian of {rounds} rounds, ± half the spread{ratio}.\n\n"
        text += "\n".join(self.tables())
        text += f"\nOn {about['processor']}, {about['cores']} cores, {about['system']}, {about['compiler']}.\n"
        text += "".join(f"\n![{title}]({file})\n" for file, title in self.files)
        (self.folder / f"{self.name}.md").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--png", action="store_true", help="PNG beside the SVG")
    options = parser.parse_args()
    found = [options.folder / f"{name}.json" for name in PLOTS]
    found += sorted(set(options.folder.glob("*.json")) - set(found))
    pages = [Page(path) for path in found if path.exists()]
    if not pages:
        parser.error(f"{options.folder} has no JSON of the compare benchmark")
    for page in pages:
        page.write(options.png)
    lines = [f"* [{page.name}]({page.name}.md): {page.about['title']}" for page in pages]
    (options.folder / "results.md").write_text("# Results\n\n" + "\n".join(lines) + "\n")
    print(f"{len(pages)} pages, {sum(len(page.files) for page in pages)} plots in {options.folder}")


if __name__ == "__main__":
    main()
