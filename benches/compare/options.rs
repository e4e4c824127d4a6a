//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// What `readme` runs: each of these with 1,000 parked, but the storm, which is of a million.
const README_WORKLOADS: [&str; 3] = ["W1", "W9", "W3"];

/// Who takes part in it: the library, the floor, and a peer of each kind.
const README_CANDIDATES: [&str; 7] = [
    "request_purgatory",
    "resolved_keys",
    "floor",
    "tm_wheel",
    "delay_queue",
    "straight_port",
    "tokio_idiom",
];

/// What `cores` runs, by number of threads. In W1t and W1x each thread or pair has 1,000 parked.
const CORES_WORKLOADS: [&str; 6] = ["W1t", "W1x", "W3", "W4", "W10t", "handles"];

/// Who takes part in it: the library and its fastest peers, and the peers of W10t.
const CORES_CANDIDATES: [&str; 7] = [
    "request_purgatory",
    "tm_wheel",
    "delay_queue",
    "straight_port",
    "async_channel",
    "event_listener",
    "tokio_notify",
];

/// A choice of workloads and candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// The rows of the README's table, in under five minutes on two cores
    Readme,
    /// The workloads of several threads, on 1, 2, 4, ... threads, in ten minutes on 16 cores
    Cores,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Scale {
    #[default]
    Full,
    Quick,
    /// As little as shows that a workload's assertions hold.
    Tiny,
}

/// Compares the library with its peers on the workloads of the benchmark.
///
/// Run by anything but `cargo bench`, which passes --bench, it only checks: `cargo test --all-targets` must not measure.
///
/// The tables go to the standard output, progress to the standard error. A workload replaces its own file in DIR;
/// `benches/plot.py DIR` makes pages and plots of what DIR has.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench compare --")]
pub(crate) struct Options {
    /// A choice of workloads and candidates
    pub(crate) preset: Option<Preset>,
    /// Everything in under five minutes: fewer and shorter rounds, fewer parked
    #[arg(long)]
    quick: bool,
    /// Only these workloads
    #[arg(long, value_name = "W1,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these candidates (names as in the tables)
    #[arg(long, value_name = "A,...", value_delimiter = ',')]
    candidates: Vec<String>,
    /// W1, W1t, W1x, W6, W8, W9, W10, W11: requests parked
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = number)]
    pub(crate) parked: Vec<usize>,
    // The same where memory is measured.
    #[arg(skip)]
    pub(crate) resident: Vec<usize>,
    /// W1, W1t, W1x, W6: keys for each request
    #[arg(long, value_name = "K,...", value_delimiter = ',', value_parser = number, default_values_t = [1, 3])]
    pub(crate) keys: Vec<usize>,
    /// W1t, W10t, handles: threads [default: 1, 2, 4, ... up to the number of cores]. W1x, W3, W4: these numbers in place
    /// of the one in their description; of W1x and W4 the even ones
    #[arg(long, value_name = "T,...", value_delimiter = ',', value_parser = number)]
    threads: Vec<usize>,
    /// Rounds per case, the tables show their medians [default: 5, of W4 11; quick: 2]
    #[arg(long, value_name = "N", value_parser = number)]
    rounds: Option<usize>,
    /// W1, W1t, W1x, W9, W10, W10t, W11, handles: measured lives per case and candidate, over all rounds; of each thread
    /// or pair
    #[arg(long, value_name = "N", value_parser = number)]
    lives: Option<usize>,
    /// W4, W5: how long requests arrive [default: W4 3, W5 70]
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) seconds: Option<usize>,
    /// W4: only requests at these rates a second, and no search for the highest
    #[arg(long, value_name = "R,...", value_delimiter = ',', value_parser = number)]
    pub(crate) rates: Option<Vec<usize>>,
    /// Where every round goes, as JSON
    #[arg(long, value_name = "DIR", default_value_os_t = default_out())]
    pub(crate) out: PathBuf,
    /// Only check the candidates, and run all workloads in miniature
    #[arg(long = "check")]
    pub(crate) check_only: bool,
    /// The workloads and their candidates
    #[arg(long)]
    pub(crate) list: bool,
    #[arg(long, hide = true)]
    bench: bool,
    // Of the one round that this process is to measure for its parent: workload, candidate, number of the case.
    #[arg(long, hide = true, num_args = 3)]
    pub(crate) child: Vec<String>,
    #[arg(skip)]
    pub(crate) scale: Scale,
}

impl Options {
    /// Reads the process's arguments; ends it with a message where they make no sense.
    pub(crate) fn from_arguments() -> Self {
        let mut options = Self::parse();
        if let Some(preset) = options.preset {
            let (workloads, candidates) = match preset {
                Preset::Readme => (&README_WORKLOADS[..], &README_CANDIDATES[..]),
                Preset::Cores => (&CORES_WORKLOADS[..], &CORES_CANDIDATES[..]),
            };
            let owned = |names: &[&str]| names.iter().copied().map(str::to_owned).collect();
            if options.only.is_empty() {
                options.only = owned(workloads);
            }
            if options.candidates.is_empty() {
                options.candidates = owned(candidates);
            }
            if options.parked.is_empty() {
                options.parked = vec![1_000];
            }
            if preset == Preset::Cores {
                options.threads = options.threads();
                options.rounds.get_or_insert(3);
                options.lives.get_or_insert(450_000);
                options.seconds.get_or_insert(1);
                options.rates.get_or_insert_with(|| vec![200_000]);
            }
        }
        options.check_only |= !options.bench;
        options.scale = match (options.check_only, options.quick) {
            (true, _) => Scale::Tiny,
            (false, true) => Scale::Quick,
            (false, false) => Scale::Full,
        };
        options.resident.clone_from(&options.parked);
        if options.parked.is_empty() {
            let (all, few, one) = ([1_000, 100_000, 1_000_000], [1_000, 100_000], [1_000]);
            options.parked = options.scale.pick(&all[..], &few, &one).to_vec();
            let all = [1_000_000, 10_000_000];
            options.resident = options.scale.pick(&all[..], &[300_000], &one).to_vec();
        }
        options
    }

    pub(crate) fn lives(&self) -> usize {
        let lives = self.scale.pick(2_000_000, 200_000, 5_000);
        self.lives.unwrap_or(lives)
    }

    /// Threads of a workload that is always on several.
    pub(crate) fn threads(&self) -> Vec<usize> {
        if self.threads.is_empty() {
            powers_up_to_cores()
        } else {
            self.threads.clone()
        }
    }

    /// Threads of a workload that has threads of its own: those that the user named and it `admits`; `None` for its own.
    pub(crate) fn named_threads(&self, admits: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
        let named = self.threads.iter().copied().filter(|&it| admits(it));
        let named: Vec<_> = named.map(Some).collect();
        if named.is_empty() { vec![None] } else { named }
    }

    /// The rounds of a workload that needs `full` of them.
    pub(crate) fn rounds_of(&self, full: usize) -> usize {
        self.rounds.unwrap_or(self.scale.pick(full, 2, 1))
    }

    /// Whether this workload is to run.
    pub(crate) fn wants(&self, workload: &str) -> bool {
        admitted(&self.only, workload)
    }

    /// Whether this candidate is to run.
    pub(crate) fn admits(&self, candidate: &str) -> bool {
        admitted(&self.candidates, candidate)
    }
}

impl Scale {
    pub(crate) fn pick<T>(self, full: T, quick: T, tiny: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Tiny => tiny,
        }
    }
}

/// 1, 2, 4, ... threads, as many as there are cores for.
fn powers_up_to_cores() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (0..)
        .map(|power| 1 << power)
        .take_while(|&threads| threads <= cores.max(2))
        .collect()
}

/// Beside the folder that Cargo makes for benches to write in.
fn default_out() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("compare")
}

fn admitted(named: &[String], name: &str) -> bool {
    named.is_empty() || named.iter().any(|other| other.eq_ignore_ascii_case(name))
}

fn number(text: &str) -> Result<usize, &'static str> {
    match text.replace('_', "").parse() {
        Ok(0) | Err(_) => Err("not a number above 0"),
        Ok(number) => Ok(number),
    }
}
