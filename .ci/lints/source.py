"""What the lints read of the source, each file as a text."""

import re

# Comments; characters and strings.
COMMENT_OR_STRING = re.compile(r'(//[^\n]*|/\*.*?\*/)|\'(?:\\.|[^\'\\])\'|b?r?(#*)"(?:\\.|[^"\\])*"\2', re.S)
TEST = re.compile(r"#\[cfg\((?:test|all\(test\b[^]]*)\)\]\s*(?:pub\S* )?(?:mod|impl|fn|use)\b[^;{]*")


def code_of(path):
    """The text without comments and tests. Of a string only its lines are left."""
    text = COMMENT_OR_STRING.sub(lambda it: " " if it[1] else '""' + '\n""' * it[0].count("\n"), path.read_text())
    while test := TEST.search(text):
        end, depth = test.end() + 1, text[test.end()] == "{"
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: test.start()] + text[end:]
    return text


def without_tests(root):
    """The files under `root` without those that only tests bring in."""
    files = sorted(root.rglob("*.rs"))
    for path in list(files):
        folder = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
        for name in re.findall(r"#\[cfg\([^]]*\btest\b[^]]*\]\s*mod (\w+);", path.read_text()):
            files = [file for file in files if file != folder / f"{name}.rs" and folder / name not in file.parents]
    return files
