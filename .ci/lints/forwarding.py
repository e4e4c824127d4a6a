#!/usr/bin/env python3
"""Finds loads that wait because a processor cannot forward what was just stored: no instruction count shows it.

A store waits in a queue before it reaches the cache. A load of the same bytes gets them from there at once if one store
wrote all of them; a load that is wider than the store, or overlaps its end, waits until the store has left the queue, 10 to
15 cycles. Such a load is looked for in the disassembly, at most 30 instructions behind a store that wrote some of its
bytes, on every path to the end of the function, and behind it where the bytes are those that its first argument points to
(a result that the caller has room for). An address is followed through copies of its registers, and lost where they are
overwritten. A locked instruction empties the queue, and a call is taken to be long enough to do so. What lies in a slot, and
is read back by another function, is not seen.

    .ci/lints/forwarding.py            tries this on the fixtures beside this file (a second)
    .ci/lints/forwarding.py PROGRAM    all functions of a program, whether or not they matter

`.ci/instructions` asks this for the hot calls: the instructions that each of them executes.
"""

import functools
import pathlib
import re
import subprocess
import sys

NEAR = 30  # Instructions.
SIZES = {"BYTE": 1, "WORD": 2, "DWORD": 4, "QWORD": 8, "XMMWORD": 16, "YMMWORD": 32, "ZMMWORD": 64}
LINE = re.compile(r"^\s*([0-9a-f]+):\t([^<#]*)")
TARGET = re.compile(r"^j\w+\s+([0-9a-f]+)$")
MEMORY = re.compile(r"(?:(\w+) PTR )?(?:(\w\w):)?\[([^]]*)\]$")
# These write no register and no memory that they name first, or lead elsewhere.
ONLY_READS = re.compile(r"(?:cmp|test|push|call|j\w+|bt|v?u?comis[sd]|v?ptest|nop\w*|prefetch\w*)$")
# These write what they name first and do not read it.
ONLY_WRITES = re.compile(r"(?:v?mov\w*|set\w+|v?lddqu)$")
ENDS = re.compile(r"(?:lock |call|ret|ud2|int3|mfence|xchg .*\[|rep)")


def whole(register):
    """The name of the 64 bits that a register is a part of."""
    if match := re.fullmatch(r"(r\d+)[dwb]?", register):
        return match[1]
    if match := re.fullmatch(r"[re]?([abcd])[xhl]", register):
        return f"r{match[1]}x"
    if match := re.fullmatch(r"[re]?(si|di|bp|sp)l?", register):
        return f"r{match[1]}"
    return register


class Instruction:
    """What an instruction reads and writes, as far as it matters here."""

    def __init__(self, text):
        self.text = re.sub(r"\s+", " ", text.strip())
        name, _, rest = self.text.removeprefix("lock ").partition(" ")
        operands = re.split(r",(?![^[]*\])", rest) if rest else []
        first = operands[0] if operands else ""
        self.ends_path = bool(ENDS.match(self.text))
        self.target = (match := TARGET.match(self.text)) and int(match[1], 16)
        self.falls_through = name != "jmp"
        self.loads, self.stores = [], []
        for at, operand in enumerate(operands):
            match = MEMORY.fullmatch(operand)
            if not match or match[1] not in SIZES or "rip" in match[3] or name == "lea":
                continue
            place = (match[2], match[3], SIZES[match[1]])
            if at == 0 and not ONLY_READS.match(name):
                self.stores.append(place)
            if at > 0 or not ONLY_WRITES.match(name):
                self.loads.append(place)
        self.writes = set()
        if first and not MEMORY.fullmatch(first) and not ONLY_READS.match(name):
            self.writes.add(whole(first))
        if name in ("push", "pop"):
            self.writes.add("rsp")
        if name in ("mul", "div", "idiv", "cqo", "cdq") or (name == "imul" and len(operands) == 1):
            self.writes |= {"rax", "rdx"}
        if name in ("xchg", "xadd"):
            self.writes |= {whole(operand) for operand in operands}
        # What the first operand is afterwards, as an address.
        self.copies = None
        if name == "lea":
            self.copies = re.search(r"\[([^]]*)\]", rest)[1]
        elif name == "mov" and len(operands) == 2 and re.fullmatch(r"r\w+", operands[1]) and self.writes:
            self.copies = operands[1]


def resolved(expression, known):
    """An address as a place and a distance from it; `known` says what registers are copies of."""
    place, distance = [], 0
    for sign, term in re.findall(r"([+-]?)([^+-]+)", expression):
        if re.fullmatch(r"0x[0-9a-f]+|\d+", term):
            distance += int(term, 0) * (-1 if sign == "-" else 1)
        elif term in known:
            other, further = known[term]
            place += other
            distance += further
        else:
            place.append(term)
    return tuple(sorted(place)), distance


def registers(place):
    return {term.partition("*")[0] for term in place}


# The value of the first argument, as a place.
ARGUMENT = (("@rdi",), 0)


def argument(code):
    """The registers that have the value of the first argument from the head of a function to its end, on the paths that are
    looked at."""
    head = [instruction.text for instruction, _ in list(code.values())[:20]]
    writes = [register for instruction, _ in code.values() if not instruction.text.startswith("pop") for register in instruction.writes]
    kept = [register for register in ("rbx", "rbp", "r12", "r13", "r14", "r15") if f"mov {register},rdi" in head]
    return {register: ARGUMENT for register in kept if writes.count(register) == 1}


def behind(function, at, store, program):
    """Loads behind a store that wait for it, as functions and addresses."""
    code, known, callers = program[function]
    (segment, expression, size), found = store, []
    paths, seen = [(function, at, 0, known, *resolved(expression, known))], set()
    while paths:
        function, at, steps, known, place, begin = paths.pop()
        code, _, callers = program[function]
        instruction, following = code[at]
        if steps:
            for load_segment, load, wide in instruction.loads:
                other, other_begin = resolved(load, known)
                if (load_segment, other) != (segment, place):
                    continue
                overlaps = other_begin < begin + size and begin < other_begin + wide
                if overlaps and not (begin <= other_begin and other_begin + wide <= begin + size):
                    found.append((function, at))
            over = [(resolved(other, known), wide) for its, other, wide in instruction.stores if its == segment]
            if any(other == place and first <= begin and begin + size <= first + wide for (other, first), wide in over):
                continue
        if steps == NEAR:
            continue
        nexts = []
        if instruction.text == "ret" and place == ARGUMENT[0]:
            for caller, back, room in callers:
                callers_known = program[caller][1]
                target, further = resolved(room, callers_known)
                nexts.append((caller, back, callers_known, target, begin + further))
        elif not instruction.ends_path:
            copied = instruction.copies and resolved(instruction.copies, known)
            # A copy of a register that is overwritten is not one any more; nor is a place that was named by it.
            known = {copy: of for copy, of in known.items() if not instruction.writes & {copy, *registers(of[0])}}
            if copied and not instruction.writes & registers(copied[0]):
                (register,) = instruction.writes
                known[register] = copied
            if not instruction.writes & registers(place):
                to = [following] if instruction.falls_through else []
                nexts = [(function, next, known, place, begin) for next in [*to, instruction.target]]
        for function, next, *rest in nexts:
            if next in program[function][0] and next not in seen:
                seen.add(next)
                paths.insert(0, (function, next, steps + 1, *rest))
    return found


def linked(disassembly, executed):
    """By function: its instructions, the registers that have its first argument, and where it returns to, with the place
    that the caller has passed."""
    program, starts = {}, {}
    for number, (name, code) in enumerate(functions(disassembly)):
        # There are many functions of one name.
        function = (number, name)
        starts[min(code)] = function
        chosen = code if executed is None else executed & code.keys()
        code = {address: (Instruction(text), next) for address, (text, next) in code.items() if address in chosen}
        program[function] = (code, argument(code), [])
    for function, (code, _, _) in program.items():
        passed, age = None, 0
        for instruction, following in code.values():
            age += 1
            if match := re.match(r"lea rdi,\[(.*)\]$", instruction.text):
                passed, age = match[1], 0
            if (match := re.match(r"call ([0-9a-f]+)$", instruction.text)) and age < 8 and passed:
                if callee := starts.get(int(match[1], 16)):
                    program[callee][2].append((function, following, passed))
    return program


@functools.cache
def functions(disassembly):
    """The functions of a disassembly: names, and instructions as text with the address of the next one, by address."""
    found, code, last = [], {}, None
    for line in disassembly.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            code, last = {}, None
            found.append((head[1], code))
        elif match := LINE.match(line):
            address = int(match[1], 16)
            if last is not None:
                code[last] = (code[last][0], address)
            code[address] = (match[2], None)
            last = address
    return [(name, code) for name, code in found if code]


def findings(disassembly, executed=None):
    """Names of functions, loads that wait, and the stores that they wait for: of all instructions, or of the executed."""
    found = {}
    program = linked(disassembly, executed)
    for function, (code, _, _) in program.items():
        for at, (instruction, _) in code.items():
            for store in instruction.stores:
                for reader, load in behind(function, at, store, program):
                    text = program[reader][0][load][0].text
                    found.setdefault((reader[1], load, text), []).append((at, instruction.text))
    return found


def disassembly(program):
    command = ["objdump", "-d", "-M", "intel", "--no-show-raw-insn", "--demangle", program]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def shown(found):
    for (name, address, load), stores in sorted(found.items()):
        print(f"{name}\n  {address:x}: {load}")
        for at, store in stores:
            print(f"    waits for {at:x}: {store}")


def main():
    if sys.argv[1:]:
        return shown(findings(disassembly(sys.argv[1])))
    fixtures = sorted(pathlib.Path(__file__).parent.glob("forwarding-*.txt"))
    wrong = [] if fixtures else ["there are no fixtures"]
    for path in fixtures:
        text = path.read_text()
        expected = {int(address, 16) for address in re.findall(r"^\s*([0-9a-f]+):.*# waits$", text, re.M)}
        got = {load for _, load, _ in findings(text)}
        if expected != got:
            wrong.append(f"{path.name}: found {sorted(map(hex, got))}, and not {sorted(map(hex, expected))}")
    return "\n".join(wrong) or None


if __name__ == "__main__":
    sys.exit(main())
