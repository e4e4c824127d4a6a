#!/usr/bin/env python3
"""Pastes each Rust snippet of the guide and of the READMEs into a crate of its own, and builds it there.

    .ci/lints/snippets.py [PAGE]...      only those of these pages

A snippet is pasted as it stands in the file, hidden lines too, so it may have none. One with `main` becomes a program, one
without becomes a module. In scope is what a reader has: the library, and what the page tells him to add by `cargo add`; a
page that says nothing of that needs what docs/guide/README.md tells. Only the pages of the cluster crate have that crate:
it turns features of tokio on that the library's users have not asked for. A warning of the compiler is a fault, too. Where
a block of `text` follows next, that is what the program prints. (Snippets marked `compile_fail` are for rustdoc, which
checks that they fail. Pages that need the same share one package, and all one target directory, so that a few seconds are
enough.)

The files of tests/mistakes are pasted too. Each must fail to compile, with the message in its first line, which stands in
docs/guide/pitfalls.md with a way out.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PASTED = ROOT / "target" / "snippets"
MISTAKES = ROOT / "tests" / "mistakes"
PITFALLS = ROOT / "docs" / "guide" / "pitfalls.md"
FOLDERS = ("cluster", "docs", "examples", "schemes", "tokio-clock", "tracker")
FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1$", re.M | re.S)

CLUSTER = ("cluster", "docs/guide/cluster.md", "examples/gateway")
ADDED = re.compile(r"cargo add (?!--)([\w-]+)( --no-default-features)?(?: --features ([\w,-]+))?")
GUIDE = ADDED.findall((ROOT / "docs" / "guide" / "README.md").read_text())


def snippets(path):
    """The line, the code, and what it prints or None."""
    text = path.read_text()
    blocks = [(text[: it.start()].count("\n") + 1, it[2].strip(), it[3]) for it in FENCE.finditer(text)]
    for (line, kind, code), following in zip(blocks, [*blocks[1:], (0, "", "")]):
        words = kind.split(",")
        if words[0] == "rust" and "compile_fail" not in words:
            yield line, code, following[2] if following[1] == "text" and following[0] <= line + code.count("\n") + 4 else None


def pages():
    found = [ROOT / "README.md"]
    for folder in FOLDERS:
        found += [path for path in sorted((ROOT / folder).rglob("*.md")) if path.name != "CHANGELOG.md"]
    return [path for path in found if not sys.argv[1:] or str(path.relative_to(ROOT)) in sys.argv[1:]]


def dependencies(page):
    """What a reader of this page has, as lines of a manifest."""
    text = (ROOT / page).read_text()
    added = []
    for name, bare, features in ADDED.findall(text) or GUIDE:
        if not name.startswith("request-purgatory"):
            chosen = json.dumps(features.split(",") if features else [])
            added.append(f'{name} = {{ version = "*", features = {chosen}, default-features = {json.dumps(not bare)} }}')
    if page.startswith(CLUSTER):
        engines = json.dumps([it for it in ("nats", "redis") if f"request_purgatory_cluster::{it}::" in text])
        added.append(f'request-purgatory-cluster = {{ path = "{ROOT}/cluster", features = {engines} }}')
    if "request_purgatory_tokio" in text:
        added.append(f'request-purgatory-tokio = {{ path = "{ROOT}/tokio-clock" }}')
    if page.startswith("tracker"):
        added.append(f'request-purgatory-tracker = {{ path = "{ROOT}/tracker" }}')
    return "\n".join(sorted(added))


class Package:
    """The snippets of pages that need the same."""

    def __init__(self, added):
        self.folder = PASTED / str(len(packages))
        for folder in ("examples", "src"):
            (self.folder / folder).mkdir(parents=True)
        (self.folder / "src" / "lib.rs").touch()
        shutil.copy(ROOT / "Cargo.lock", self.folder)
        self.manifest = f"""[package]
name = "snippets"
edition = "2024"
publish = false

[workspace]

[dependencies]
request-purgatory = {{ path = "{ROOT}" }}
request-purgatory-schemes = {{ path = "{ROOT}/schemes" }}
{added}

"""

    def paste(self, name, code, is_program=True):
        (self.folder / "examples" / f"{name}.rs").write_text(code)
        if not is_program:
            self.manifest += f'[[example]]\nname = "{name}"\ncrate-type = ["lib"]\n\n'

    def cargo(self, *arguments):
        command = ["cargo", *arguments, "--quiet", "--manifest-path", self.folder / "Cargo.toml"]
        return subprocess.run([*command, "--target-dir", ROOT / "target"], capture_output=True, text=True)

    def said(self):
        """The errors and warnings of each example, by name. (What a module does not use itself, its user may.)"""
        (self.folder / "Cargo.toml").write_text(self.manifest)
        checked = self.cargo("check", "--examples", "--keep-going", "--message-format", "json")
        found = {}
        for line in map(json.loads, checked.stdout.splitlines()):
            if line["reason"] == "compiler-message" and line["target"]["kind"] == ["example"]:
                name, message = line["target"]["name"], line["message"]
                is_module = "lib" in line["target"]["crate_types"]
                if message["spans"] and not (is_module and (message["code"] or {}).get("code") == "dead_code"):
                    found[name] = found.get(name, "") + message["rendered"]
        if checked.returncode and not found:
            sys.exit(f"snippets: the crates that they need do not build:\n{checked.stderr}")
        return found


shutil.rmtree(PASTED, ignore_errors=True)
packages, prints, where, said, wrong = {}, {}, {}, {}, []


def package(page):
    added = dependencies(page)
    if added not in packages:
        packages[added] = Package(added)
    return packages[added]


for path in pages():
    page = str(path.relative_to(ROOT))
    for line, code, printed in snippets(path):
        name = re.sub(r"\W+", "-", page.removesuffix(".md")).lower() + f"-line-{line}"
        where[name] = page, line
        package(page).paste(name, code, re.search(r"\bfn main\(", code))
        if printed is not None:
            prints[name] = printed
mistakes = {} if sys.argv[1:] else {path.stem: path.read_text() for path in sorted(MISTAKES.glob("*.rs"))}
for name, code in mistakes.items():
    package("docs/guide/README.md").paste(name, code)
for one in packages.values():
    said |= one.said()

for name, (page, line) in where.items():
    if name in said:
        needs = dependencies(page)
        wrong.append(f"{page}:{line} cannot be pasted into a crate with these dependencies:\n{needs}\n{said[name]}")
for name, expected in prints.items() if not wrong else ():
    page, line = where[name]
    found = package(page).cargo("run", "--example", name)
    if found.returncode or found.stdout != expected:
        wrong.append(f"{page}:{line} does not print what the page says:\n{found.stdout}{found.stderr}")
for name, code in mistakes.items():
    message = code.split("\n")[0].removeprefix("//~ ")
    if message not in said.get(name, ""):
        wrong.append(f"tests/mistakes/{name}.rs does not cause '{message}':\n{said.get(name, 'it compiles')}")
    if message not in PITFALLS.read_text():
        wrong.append(f"'{message}', of tests/mistakes/{name}.rs, is not in docs/guide/pitfalls.md")
if wrong:
    sys.exit("\n".join(wrong))
print(f"snippets: {len(where)} can be pasted as they stand, {len(prints)} print what their page says; {len(mistakes)} mistakes")
