"""What the scripts for the single clients share."""

import statistics
import sys
import time

PROMPT = 0.050
TRIES = 7


def run(checks):
    """Runs the check that the command line names: ADDRESS CHECK."""
    address, name = sys.argv[1:]
    checks[name](address)


def equal(found, expected):
    if found != expected:
        sys.exit(f"expected {expected!r}, found {found!r}")


def within(seconds, least, most):
    if not least <= seconds < most:
        sys.exit(f"took {seconds:.3f} s, not {least} to {most}")


def prompt(tries):
    """The median has to be prompt; a single try may be late on a busy machine."""
    if statistics.median(tries) >= PROMPT:
        sys.exit(f"median not below {PROMPT} s: {sorted(tries)}")


def settle():
    """Time for a consumer's next fetch to be parked."""
    time.sleep(0.2)


def eventually(poll, wanted, patience=20.0):
    """Polls until something comes that is wanted."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = poll()
        if wanted(found):
            return found
    sys.exit("nothing came")
