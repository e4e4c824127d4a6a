//! What the broker says on its standard output and standard error.

use std::io::{self, Write};

/// Prints a line on standard output. Fails if that was closed.
pub(crate) fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Prints a line on standard error. If that is closed, the line is lost.
pub(crate) fn warn(line: &str) {
    let _ = writeln!(io::stderr().lock(), "broker: {line}");
}
