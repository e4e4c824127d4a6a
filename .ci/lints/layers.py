#!/usr/bin/env python3
"""The order of the source: which file names items of which other file, read from `use` and from paths in the code.

Wrong are a circle of files in any crate of the workspace, inside a folder as well, and in src a module that names one of
its own layer or of a higher one. A name counts for the file that defines it: `pub use` hands a name on and is no use of
it, so a parent may re-export its children. The parts of a type that lie in several files and call each other's methods by
`self` are a circle. So is a child that names an item of its parent, where the parent's own code names the child. Unit
tests may name what they like.

Wrong besides: other layers in docs/design.md.
"""

import pathlib
import re
import sys

from source import code_of, without_tests

# From the lowest to the highest. A module names only modules of the rows above its own.
LAYERS = """
debug sync
callbacks error hash stats
cell time
observe operation watch
threads
engine
purgatory timer
future
lib
guide
"""

# The other crates, by the folder of their root file. (Those of tests, `tests/*/main.rs`, are found.)
CRATES = """
benches/compare
cluster/benches/cluster
cluster/simulation
cluster/src
examples/broker/src
examples/gateway/src
examples/long_poll/src
examples/programs/demonstration
schemes/src
testing/src
tools/abuse/src
tools/soak/src
"""

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
ITEM = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(\w+)")
wrong = []


def names_of(tree, head=()):
    """The paths of a `use` tree, each with the name that it brings."""
    tree = tree.strip()
    if group := re.fullmatch(r"((?:\w+\s*::\s*)*)\{(.*)\}", tree, re.S):
        head += tuple(re.findall(r"\w+", group[1]))
        depth, parts = 0, [""]
        for letter in group[2]:
            depth += {"{": 1, "}": -1}.get(letter, 0)
            parts = [*parts, ""] if letter == "," and not depth else [*parts[:-1], parts[-1] + letter]
        return [found for part in parts if part.strip() for found in names_of(part, head)]
    path, _, alias = tree.partition(" as ")
    path = head + tuple(re.findall(r"\w+|\*", path))
    path = path[:-1] if path[-1] == "self" else path
    return [(path, alias.strip() or path[-1])]


class File:
    """A module: what it defines, what it brings in by `use`, and its code without that."""

    def __init__(self, path, folder):
        relative = path.relative_to(folder).with_suffix("")
        self.name = str(path.relative_to(ROOT))
        self.path = tuple(part for part in relative.parts if part not in ("lib", "main", "mod"))
        text = code_of(path)
        self.brought, self.handed_on = {}, set()
        self.globs = []
        for use in re.finditer(r"(pub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);", text):
            for target, name in names_of(use[2]):
                if name == "*":
                    self.globs.append(target[:-1])
                else:
                    self.brought[name] = target
                    self.handed_on |= {name} if use[1] else set()
        # (`pub(in crate::folder)` says who may name the item, and names none.)
        self.code = re.sub(r"\buse\s+[^;]+;|\bpub\(in [^)]*\)", " ", text)
        self.modules = set(re.findall(r"\bmod (\w+);", self.code))
        self.items = set(ITEM.findall(self.code))


class Crate:
    """The files of a crate by their paths, and which of them names items of which other."""

    def __init__(self, folder):
        self.name, folder = folder, ROOT / folder
        # (A main.rs beside a lib.rs is a crate of its own, of one file.)
        paths = [path for path in without_tests(folder) if path.name != "main.rs" or not (folder / "lib.rs").exists()]
        self.files = {file.path: file for file in (File(path, folder) for path in paths)}
        self.methods = {}
        for file in self.files.values():
            for owner, _, body in self.blocks(file):
                for method in re.findall(r"\bfn (\w+)", body):
                    self.methods.setdefault((owner, method), set()).add(file)
        self.graph = {file: {*self.uses(file), *self.parts(file)} - {file} for file in self.files.values()}

    def find(self, path, here, seen=()):
        """The file that defines what `path` names in the module `here`, or None if that is not of this crate."""
        here, rest = tuple(here), tuple(path)
        if rest[0] == "crate":
            here, rest = (), rest[1:]
        elif rest[0] in ("self", "super"):
            while rest and rest[0] in ("self", "super"):
                here, rest = (here[:-1] if rest[0] == "super" else here), rest[1:]
        elif (*here, rest[0]) not in self.files and rest[0] not in self.files[here].brought:
            return None
        while rest and (*here, rest[0]) in self.files:
            here, rest = (*here, rest[0]), rest[1:]
        file = self.files.get(here)
        if file and rest and rest[0] in file.modules:
            return None  # (By `#[path]` it lies in another folder, as what several tests share.)
        if not file or not rest or rest[0] in file.items or (here, rest) in seen:
            return file
        seen = (*seen, (here, rest))
        if rest[0] in file.brought:
            target = file.brought[rest[0]]
            # (`use tokio::{self, ..}`, `use event_listener::event_listener`: of the crate of that name.)
            return self.find(target + rest[1:], here, seen) if target[0] != rest[0] else None
        for glob in file.globs:
            found = self.find((*glob, rest[0]), here, seen)
            if found and rest[0] in found.items:
                return found
        return file

    def uses(self, file):
        """The files whose items this one's code names."""
        for name, target in file.brought.items():
            if name not in file.handed_on or re.search(rf"\b{name}\b", file.code):
                if (found := self.find(target, file.path)) and found.path != tuple(p for p in target if p != "crate"):
                    yield found
        for glob in file.globs:
            if (found := self.find(glob, file.path)) and not found.path[:-1] == file.path:
                yield found
        for path in set(re.findall(r"(?<![\w:])(?:\$?\w+::)+\w+", file.code)):
            if found := self.find(path.replace("$", "").split("::"), file.path):
                yield found

    def parts(self, file):
        """The files whose methods the code of `file` calls by `self`, in the blocks of a type that lies in several files.

        A method that `file` has itself is that of its own block: `impl Builder<Timer>` is not `impl Builder<Purgatory>`.
        """
        for owner, _, body in self.blocks(file):
            for called in re.findall(r"\b[sS]elf(?:\.|::)(\w+)", body):
                others = self.methods.get((owner, called), set())
                yield from others if file not in others else ()

    def blocks(self, file):
        """Every inherent `impl`: where its type is defined, the type, and the body."""
        for head in re.finditer(r"^(?: *unsafe )?impl\b(?:<[^{]*?>(?=\s))?\s+(\w+)[^{;]*\{(.*?)^\}", file.code, re.M | re.S):
            if " for " not in head[0][: head[0].index("{")]:
                defining = file if head[1] in file.items else self.find((head[1],), file.path)
                if defining:
                    yield (defining.path, head[1]), head[1], head[2]

    def circles(self):
        """Strongly connected files, by Tarjan."""
        index, low, stack, found = {}, {}, [], []

        def visit(file):
            index[file] = low[file] = len(index)
            stack.append(file)
            for other in sorted(self.graph[file], key=lambda other: other.name):
                if other not in index:
                    visit(other)
                if other in stack:
                    low[file] = min(low[file], low[other])
            if low[file] == index[file]:
                cut = stack.index(file)
                found.append(stack[cut:])
                del stack[cut:]

        for file in self.graph:
            if file not in index:
                visit(file)
        return [circle for circle in found if len(circle) > 1]


rank = {name: row for row, names in enumerate(LAYERS.split("\n")) for name in names.split()}
tests = [
    str(path.parent.relative_to(ROOT))
    for depth in ("", "*/", "*/*/")
    for path in sorted(ROOT.glob(f"{depth}tests/*/main.rs"))
    if path.relative_to(ROOT).parts[0] != "target"
]
src, others = Crate("src"), list(map(Crate, [*CRATES.split(), *tests]))
tops = {path[0] if path else "lib" for path in src.files}
wrong += [f"src/{name}.rs has no layer in LAYERS" for name in sorted(tops - set(rank))]
wrong += [f"LAYERS has {name}, which src has not" for name in sorted(set(rank) - tops)]
told = re.findall(r"^\d+\. ((?:`\w+`(?:, )?)+)$", (ROOT / "docs" / "design.md").read_text(), re.M)
if [re.findall(r"`(\w+)`", line) for line in told] != [names.split() for names in LAYERS.strip().split("\n")]:
    wrong.append("docs/design.md lists other layers than LAYERS")
for file, named in src.graph.items():
    for other in named:
        upper, lower = (it.path[0] if it.path else "lib" for it in (file, other))
        if upper != lower and rank.get(lower, -1) >= rank.get(upper, 99):
            wrong.append(f"{file.name} names {other.name}: {upper} stands below {lower}, or beside it")
for crate in (src, *others):
    for circle in crate.circles():
        wrong.append(f"a circle of {len(circle)} files:")
        for file in sorted(circle, key=lambda file: file.name):
            named = sorted(other.name for other in crate.graph[file] & set(circle))
            wrong.append(f"    {file.name} names {', '.join(named)}")
if wrong:
    sys.exit("\n".join(wrong))
files = len(src.files) + sum(len(crate.files) for crate in others)
print(
    f"layers: {len(src.files)} files of src in {len(set(rank.values()))} layers; "
    f"no circle among {files} files of {1 + len(others)} crates"
)
