//! What the broker says on its standard output and standard error.

/// Prints a line on standard output. Fails if that was closed.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        writeln!(out, $($words)*).and_then(|()| out.flush())
    }};
}

/// Prints a line on standard error. If that is closed, the line is lost.
macro_rules! log {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr().lock(), "broker: {}", format_args!($($words)*));
    }};
}
