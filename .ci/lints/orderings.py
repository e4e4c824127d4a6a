#!/usr/bin/env python3
"""Every atomic operation of `src` and `loom-tests/inside` has an `ORDERING:` comment that says what it pairs with, and such a
comment names only what the source has. A comment stands for all operations between it and the next one of its function, or,
above an `impl`, for all of that block."""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])

ORDERING = re.compile(r"\bOrdering::(Relaxed|Acquire|Release|AcqRel|SeqCst)\b")
FUNCTION = re.compile(r"\s*(?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?fn \w")
COMMENT = re.compile(r"( *)// ORDERING: .*\n(?:\1// .*\n)*")

files = [path for folder in ("src", "loom-tests/inside") for path in sorted((ROOT / folder).rglob("*.rs"))]
source = "\n".join(path.read_text() for path in files)
# Items, fields and parameters, variants.
known = set(re.findall(r"\b(?:fn|const|static|struct|enum) (\w+)", source))
known |= set(re.findall(r"\b(\w+): ", source)) | set(re.findall(r"^\s+([A-Z]\w+)\b", source, re.M))
wrong, count = [], 0


def unargued(lines):
    """The numbers of the lines with an ordering that no comment argues."""
    # Whether such a comment stands in the function, for the whole `impl`, or directly above the line.
    in_function = in_block = above = is_test = False
    for number, line in enumerate(lines, 1):
        if line.startswith("mod tests {"):
            return
        if line.startswith("}"):
            in_function = in_block = is_test = False
        elif line.startswith("impl"):
            in_block = above
        elif FUNCTION.match(line):
            in_function = above
            is_test = any("cfg" in before and "test" in before for before in lines[max(0, number - 4) : number - 1])
        text = line.strip()
        if text.startswith("// ORDERING: "):
            in_function = above = True
        elif not text.startswith(("//", "#[")):
            above = False
            if ORDERING.search(line) and not (in_function or in_block or is_test):
                yield number


for path in files:
    name, text = path.relative_to(ROOT), path.read_text()
    wrong += [f"{name}:{number}: an ordering without its argument" for number in unargued(text.splitlines())]
    for comment in COMMENT.finditer(text):
        count += 1
        for named in re.findall(r"`([\w:]+)`", comment[0].replace("\n", " ")):
            if named.split("::")[-1] not in known:
                line = text[: comment.start()].count("\n") + 1
                wrong.append(f"{name}:{line}: there is no `{named}`")
if wrong:
    sys.exit("\n".join(wrong))
print(f"orderings: {count} arguments, and no atomic operation without one")
