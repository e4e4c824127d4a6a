#!/usr/bin/env python3
"""Follows every link inside the repository: of the Markdown files, as one reads them there, and of the rendered
documentation (`cargo doc` first), as one reads it on docs.rs. Also looks up the functions that docs/design.md names
(`src/purgatory/park.rs`: `park`, or `Shard::free` in its table of shared lines), and the items that its glossary
explains. Fails on a link that leads nowhere, and on a function, an item or a script of .ci that is named and not there.

`.ci/lints/links.py --write` writes what the rendered documentation needs in the place of files of the repository:
src/guide/links.md, where the links of its pages lead instead, and src/guide/picture.md, scale.md and life.md, which are
pictures of docs. A page defines its links at its end, for readers of the repository. From there the table has them: a
label that leads to a page of src/guide.rs, or to an example, leads to its module; a label that names an item leads to the
item, as long as src/guide.rs has it in scope (an item of the tracker, to the documentation of its crate); and the rest to the list of what is only in the repository."""

import base64
import html.parser
import os
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
RENDERED = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "doc"
FOLDERS = ("benches", "cluster", "docs", "examples", "fuzz", "loom-tests", "schemes", "src", "testing", "tests", "tokio-clock", "tools",
           "tracker")
wrong = []


def markdown():
    """Definitions, inline links and images; references that nothing defines."""
    files = [*ROOT.glob("*.md"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md"))]
    for path in files:
        name = str(path.relative_to(ROOT))
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        prose = re.sub(r"(?<!`)`[^`\n]+`(?!`)", lambda code: code[0].replace("[", "(").replace("](", "]"), text)
        defined = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, flags=re.M))
        targets = list(defined.values()) + re.findall(r"\]\(([^)\s]+)\)", prose)
        if "src/guide/" not in name:
            for target in targets:
                if re.match(r"[a-z]+:", target) or target.startswith("#"):
                    continue
                if not (path.parent / target.split("#")[0]).exists():
                    wrong.append(f"{name}: {target} is not there")
        for used in re.findall(r"\]\[([^\]]+)\]", prose):
            if used not in defined:
                wrong.append(f"{name}: [{used}] is not defined")
        for code in re.findall(r"\[(`[^`\n]+`)\](?![\[(:])", text):
            if code not in defined:
                wrong.append(f"{name}: [{code}] is not defined")


def scripts():
    """The scripts that texts, comments and error messages name."""
    folders = (*FOLDERS, "cluster", ".ci")
    files = [*ROOT.glob("*.*"), *(file for folder in folders for file in (ROOT / folder).rglob("*"))]
    for path in files:
        if path.suffix in ("", ".md", ".py", ".rs", ".toml") and path.is_file() and "target" not in path.parts:
            for script in re.findall(r"(?<![\w/])\.ci/[\w./-]*\w", path.read_text(errors="ignore")):
                if not (ROOT / script).exists():
                    wrong.append(f"{path.relative_to(ROOT)}: {script} is not there")


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        # From there on other crates speak: their blanket implementations, with links that are meant for their pages.
        own, *foreign = text.split('id="blanket-implementations-list"', 1)
        self.feed(own)
        links = list(self.links)
        self.feed("".join(foreign))
        self.links = links

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.anchors.add(attributes["id"])
        link = attributes.get("href" if tag == "a" else "src" if tag == "img" else "")
        if link:
            self.links.append(link)


def rendered():
    """Links of the documentation's own pages (not of the highlighted source, which rustdoc makes by itself)."""
    folders = (RENDERED / crate for crate in ("request_purgatory", "request_purgatory_schemes"))
    pages = {path: Page(path.read_text()) for folder in folders for path in folder.rglob("*.html")}
    if not pages:
        sys.exit("there is no documentation: cargo doc first")
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            # A path of Rust that rustdoc could not resolve looks like an address with the scheme `crate`. An inlined crate
            # has no page of all items.
            if parts.scheme not in ("", "crate") or path.parent.name == "scheme" and link == "all.html":
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                wrong.append(f"{path.relative_to(RENDERED)}: {link} is not there")
            elif target in pages and parts.fragment and not (
                {parts.fragment, urllib.parse.unquote(parts.fragment)} & pages[target].anchors
            ):
                wrong.append(f"{path.relative_to(RENDERED)}: {link} has no such anchor")
    return len(pages)


def functions():
    """What docs/design.md names: the way of an operation, by file and function, and the methods that write shared lines."""
    page = (ROOT / "docs" / "design.md").read_text()
    named = re.findall(r"`((?:src|cluster)/[\w/]+\.rs)`:\s+`(\w+)`", page)
    for file, name in named:
        path = ROOT / file
        if not path.is_file():
            wrong.append(f"docs/design.md: {file} is not there")
        elif not re.search(rf"\bfn {name}\b", path.read_text()):
            wrong.append(f"docs/design.md: {file} has no function {name}")
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.rs")]
    methods = re.findall(r"`([A-Z]\w+)::(\w+)`", page.split("## What threads write together")[1].split("\n## ")[0])
    for owner, name in methods:
        owned = re.compile(rf"^impl\b[^\n{{]*\b{owner}\b.*?^}}", re.M | re.S)
        if not any(re.search(rf"\bfn {name}\b", body) for source in sources for body in owned.findall(source)):
            wrong.append(f"docs/design.md: there is no {owner}::{name}")
    words = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [A-Z]", page.split("## Glossary")[1], re.M)
    for word, item in words:
        item = item.strip("`")
        if not any(re.search(rf"\b(?:struct|enum|trait|const|fn) {item}\b", source) for source in sources):
            wrong.append(f"docs/design.md: the glossary explains {word} by {item}, which the source has not")
    return len(named) + len(methods)


def write(file, text, of):
    """Writes a file of src/guide, or sees whether it is as it would be written."""
    path = ROOT / "src" / "guide" / file
    if "--write" in sys.argv:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        wrong.append(f"src/guide/{file} is not what {of}: run `.ci/lints/links.py --write`")


def picture(picture, definition):
    """A picture of docs, as a definition that a page of the rendered documentation can have in itself."""
    drawn = base64.b64encode((ROOT / "docs" / picture).read_bytes()).decode()
    label = pathlib.Path(picture).name
    write(definition, f"[{label}]: data:image/svg+xml;base64,{drawn}\n", f"docs/{picture} shows")


def table():
    """Where the labels of the pages lead in the rendered documentation."""
    guide = (ROOT / "src" / "guide.rs").read_text()
    modules = {ROOT / "docs" / file: f"crate::guide::{name}" for name, file in re.findall(r'page!\((\w+), "([^"]+)"', guide)}
    modules |= {ROOT / "docs/guide/README.md": "crate::guide", ROOT / "examples/README.md": "crate::guide::examples"}
    pages = [*modules, ROOT / "README.md"]
    for name in re.findall(r'^ +(\w+): "', guide, re.M):
        modules[ROOT / f"examples/{name}.rs"] = f"crate::guide::examples::{name}"
    leads = {}
    for page in pages:
        for label, target in re.findall(r"^\[([^\]]+)\]: (\S+)$", page.read_text(), re.M):
            if re.match(r"[a-z]+:", target) or target.endswith(".svg"):
                continue
            file = (page.parent / target.split("#")[0]).resolve()
            item = label.strip("`")
            if ROOT / "tracker/src" in file.parents:
                lead = "https://docs.rs/request-purgatory-tracker"
            elif re.search("[A-Z]|::", item) or label != item:
                # (Beside modules of the crate, the guide has pages of the same name.)
                lead = f"crate::{item}" if item[0].islower() else f"crate::guide::{item}"
            else:
                lead = modules.get(file, "crate::guide#in-the-repository")
            if leads.setdefault(label, lead) != lead:
                wrong.append(f"{page.relative_to(ROOT)}: [{label}] leads to {lead} here, and to {leads[label]} on another page")
    lines = "".join(f"[{label}]: {lead}\n" for label, lead in sorted(leads.items()))
    write("links.md", f"<!-- Written by .ci/lints/links.py from the ends of the pages. -->\n\n{lines}", "the ends of the pages say")


table()
picture("guide/operation.svg", "picture.md")
picture("guide/cluster-scale.svg", "scale.md")
picture("benchmarks/W1-life.svg", "life.md")
markdown()
scripts()
count = rendered()
named = functions()
if wrong:
    sys.exit("\n".join(wrong))
print(f"links: all lead somewhere, on {count} pages; {named} functions of docs/design.md are there")
