#!/usr/bin/env python3
"""Compares the names of metrics: those that the source asks its recorder for, and those in docs/operations (dashboard, alert
rules) and docs/observability.md. Each that is used exists, and each that exists is on the dashboard. Each alert has its row
in docs/operations/README.md, and fires in alerts.test.yml. Then promtool, where it is installed, checks and tests the rules
(.ci/install operators installs it; with CI or REQUEST_PURGATORY_REQUIRE_CLIENTS=1 in the environment it has to be there)."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
FOLDER = ROOT / "docs" / "operations"
SOURCES = ("src/observe/meters.rs", "cluster/src/observe.rs", "examples/gateway/src/prometheus.rs")
NAME = r"\b(?:purgatory|gateway)_\w+"
wrong = []

metrics, histograms = set(), set()
for source in SOURCES:
    text = (ROOT / source).read_text()
    metrics |= set(re.findall(rf'"({NAME})"', text))
    histograms |= set(re.findall(rf'histogram\(\s*"({NAME})"', text))


def used(text):
    """The metrics that a text of PromQL names."""
    for name in set(re.findall(NAME, text)):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        yield whole if whole in histograms else name


def compare(where, names, all_of):
    names = set(names)
    wrong.extend(f"{where} names {name}, which no source has" for name in sorted(names - metrics))
    wrong.extend(f"{where} does not name {name}" for name in sorted(set(all_of) - names))


panels = json.loads((FOLDER / "dashboard.json").read_text())
# A row that is collapsed has its panels in itself.
shown = [each for panel in panels["panels"] for each in (panel, *panel.get("panels", ()))]
expressions = [target["expr"] for panel in shown for target in panel.get("targets", ())]
for panel in shown:
    # A heading asks nothing.
    if panel["type"] == "row":
        continue
    needs = {
        "the variable `source` as its datasource": panel.get("datasource", {}).get("uid") == "${source}",
        "a unit": "unit" in panel.get("fieldConfig", {}).get("defaults", {}),
        "a question": bool(panel.get("targets")),
        "questions of different names": len({it["refId"] for it in panel["targets"]}) == len(panel["targets"]),
    }
    wrong.extend(f"dashboard.json: {panel['title']!r} lacks {what}" for what, is_there in needs.items() if not is_there)
variables = [str(variable["query"]) for variable in panels["templating"]["list"]]
compare("dashboard.json", used(" ".join(expressions)), metrics)
compare("a variable of dashboard.json", used(" ".join(variables)), ())
rules = (FOLDER / "alerts.yml").read_text()
compare("alerts.yml", used(rules), ())
tests = (FOLDER / "alerts.test.yml").read_text()
compare("alerts.test.yml", used(tests), used(rules))
table = re.findall(rf"^\| `({NAME})`", (ROOT / "docs" / "observability.md").read_text(), re.M)
library = re.findall(rf'"({NAME})"', (ROOT / SOURCES[0]).read_text())
compare("docs/observability.md", table, library)

alerts = re.findall(r"^ +- alert: (\w+)$", rules, re.M)
readme = (FOLDER / "README.md").read_text()
rows = re.findall(r"^\| (?:<a id=\"\w+\"></a>)?`(Purgatory\w+)` \|", readme, re.M)
if sorted(alerts) != sorted(rows):
    wrong.append(f"README.md has not one row for each alert: {sorted(set(alerts) ^ set(rows))}")
for alert in alerts:
    runbook = f"README.md#{alert.lower()}"
    if f"{runbook}\n" not in rules or f'<a id="{alert.lower()}">' not in readme:
        wrong.append(f"alerts.yml and README.md do not agree on {runbook}")
    if f'alertname="{alert}"' not in tests:
        wrong.append(f"alerts.test.yml does not see {alert} fire")

if shutil.which("promtool"):
    for arguments in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True)
        if done.returncode:
            wrong.append(f"promtool {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
    tested = "promtool finds no fault"
elif "CI" in os.environ or os.environ.get("REQUEST_PURGATORY_REQUIRE_CLIENTS") == "1":
    wrong.append("promtool is not there: run .ci/install operators")
else:
    tested = "promtool is not installed (.ci/install operators)"
if wrong:
    sys.exit("\n".join(wrong))
print(f"operations: {len(metrics)} metrics, {len(expressions)} expressions, {len(alerts)} alerts; {tested}")
