//! What is printed; and the judgement of the memory, which needs the whole run.

use crate::cli::Options;
use crate::ledger::{Accounts, Ending, Ledger};
use crate::panics::lock;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use testing::allocated::allocated;
use testing::process::{self, Process};

/// A line of progress so often.
const LINE: Duration = Duration::from_secs(5);
/// Nothing has happened for so long: some call never returns.
const HANGS: Duration = Duration::from_secs(90);

/// What may be allocated more at the end than after the warm-up: places of threads, handles and purgatories, used again.
const GROWTH_KIB: usize = 256;

pub(crate) fn begin(options: &Options) {
    println!(
        "soak: {:?}, seed {}, {} threads\nmachine: {}",
        options.duration(),
        options.seed,
        options.threads,
        machine()
    );
}

/// What ran this: no names.
fn machine() -> String {
    format!(
        "{}, {} cores, {} GiB, {} {}",
        process::processor()
            .as_deref()
            .unwrap_or("unknown processor"),
        thread::available_parallelism().map_or(1, usize::from),
        process::memory().unwrap_or(0) >> 30,
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}

/// Prints how it goes, and ends a run that hangs.
pub(crate) struct Monitor {
    thread: JoinHandle<()>,
    stop: Sender<()>,
}

impl Monitor {
    pub(crate) fn start(ledger: &Arc<Ledger>) -> Self {
        let ledger = ledger.clone();
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let start = Instant::now();
            let (mut heartbeat, mut beaten, mut made) = (0, Instant::now(), 0);
            while stopped.recv_timeout(LINE) == Err(RecvTimeoutError::Timeout) {
                let all = progress(&ledger, start.elapsed(), made);
                made = all;
                if ledger.heartbeat.read() != heartbeat {
                    (heartbeat, beaten) = (ledger.heartbeat.read(), Instant::now());
                } else if beaten.elapsed() > HANGS {
                    println!("FAILED: nothing has happened for {HANGS:?}: it hangs");
                    std::process::exit(1);
                }
            }
        });
        Self { thread, stop }
    }

    pub(crate) fn stop(self) {
        drop(self.stop);
        // It prints, and nothing else.
        let _ = self.thread.join();
    }
}

fn progress(ledger: &Ledger, elapsed: Duration, before: u64) -> u64 {
    let current = lock(&ledger.current).clone();
    let sum =
        |count: fn(&Accounts) -> u64| current.iter().map(|accounts| count(accounts)).sum::<u64>();
    let made = ledger.totals.made.read() + sum(|accounts| accounts.made.read());
    println!(
        "{:>5} s  {:>5} epochs  {:>11} operations  {:>7}/s  {:>6} parked  {:>4} MiB",
        elapsed.as_secs(),
        ledger.epochs.read(),
        made,
        made.saturating_sub(before) / LINE.as_secs(),
        sum(Accounts::open),
        Process::this().resident().unwrap_or(0) >> 20
    );
    made
}

/// What is allocated at the quiet ends of epochs, when there is no purgatory. (Resident memory tells less: it depends on
/// how many arenas the allocator has made for threads, and how full each has been.)
pub(crate) struct Memory {
    run: Duration,
    samples: Vec<(Duration, usize)>,
}

impl Memory {
    pub(crate) fn new(run: Duration) -> Self {
        let samples = Vec::new();
        Self { run, samples }
    }

    pub(crate) fn sample(&mut self, at: Duration) {
        self.samples.push((at, allocated() >> 10));
    }

    /// The most in the first quarter of the run, and the median of the last quarter, in KiB.
    fn ends(&self) -> Option<(usize, usize)> {
        let (warm, late) = (self.run / 4, self.run * 3 / 4);
        let in_the = |from: Duration, to: Duration| {
            let within = self
                .samples
                .iter()
                .filter(move |(at, _)| (from..to).contains(at));
            let mut kib = within.map(|(_, kib)| *kib).collect::<Vec<_>>();
            kib.sort_unstable();
            kib
        };
        let warm = in_the(Duration::ZERO, warm).last().copied()?;
        let end = in_the(late, Duration::MAX);
        Some((warm, *end.get(end.len() / 2)?))
    }

    pub(crate) fn judge(&self, ledger: &Ledger) {
        if let Some((warm, end)) = self.ends()
            && end > warm + GROWTH_KIB
        {
            ledger.discrepancy(format!(
                "{warm} KiB were allocated in the first quarter, {end} KiB in the last"
            ));
        }
    }
}

pub(crate) fn end(ledger: &Ledger, memory: &Memory, options: &Options, elapsed: Duration) {
    let accounts = &ledger.totals;
    let line = |what: &str, count: u64| println!("  {what:<44}{count:>14}");
    println!("\nledger after {elapsed:.1?}");
    line("epochs", ledger.epochs.read());
    line("purgatories", ledger.purgatories.read());
    line("operations", accounts.made.read());
    line("  completed at once", accounts.ended(Ending::AtOnce));
    line("  completed", accounts.ended(Ending::Completed));
    line("  expired", accounts.ended(Ending::Expired));
    line(
        "  cancelled, and handed back",
        accounts.ended(Ending::TakenBack),
    );
    line(
        "  cancelled on behalf of the canceller",
        accounts.ended(Ending::Cancelled),
    );
    line("  shut down", accounts.ended(Ending::ShutDown));
    line("  aborted by a panic", accounts.ended(Ending::Aborted));
    line("  rejected", accounts.ended(Ending::Rejected));
    line("  without an ending", accounts.open());
    line("payloads dropped", accounts.dropped.read());
    line("panics in the library's hands", accounts.panics.read());
    line(
        "expired, though they could complete",
        accounts.missed.read(),
    );
    line("calls from inside callbacks", accounts.nested.read());
    line(
        "found busy, and ended by the other thread",
        accounts.waited.read(),
    );
    let (late, micros) = (lock(&ledger.lateness), Duration::from_micros);
    println!(
        "lateness of expiries, tick and completion thread included: p50 {:?}, p99 {:?}, max {:?}",
        micros(late.value_at_quantile(0.5)),
        micros(late.value_at_quantile(0.99)),
        micros(late.max())
    );
    for bucket in late.iter_log(1, 2.0) {
        let count = bucket.count_since_last_iteration();
        if count > 0 {
            let share = count as f64 * 100.0 / late.len() as f64;
            let bound = format!("{:?}", micros(bucket.value_iterated_to() + 1));
            println!("  below {bound:>12} {count:>12} {share:>7.3} %");
        }
    }
    match memory.ends() {
        Some((warm, end)) => println!(
            "allocated after an epoch: at most {warm} KiB in the first quarter, {end} KiB (median) in the last"
        ),
        None => println!("allocated memory: not judged, there are too few epochs"),
    }
    match ledger.discrepancies() {
        0 => println!("PASSED: no discrepancy (seed {})", options.seed),
        count => println!("FAILED: {count} discrepancies (seed {})", options.seed),
    }
}
