//! The command line.

use std::path::PathBuf;
use std::process::exit;

const HELP: &str = "\
Compares the library with its peers on the workloads of the benchmark.

    cargo bench --bench compare -- [readme] [OPTIONS]

    readme              the rows of the README's table, in under five minutes on two cores
    --quick             everything in under five minutes: fewer and shorter rounds, fewer parked
    --only W1[,...]     only these workloads
    --candidates A,B    only these candidates (names as in the tables)
    --parked N[,...]    W1, W1t, W1x, W6, W8, W9, W10, W11: requests parked
    --keys K[,...]      W1, W1t, W1x, W6: keys for each request
    --threads T[,...]   W1t: threads
    --rounds N          rounds per case, the tables show their medians [default: 5, of W4 11; quick: 2]
    --lives N           W1, W1t, W1x, W9, W10, W11: measured lives per case and candidate, over all rounds
    --seconds N         W4, W5: how long requests arrive [default: W4 3, W5 70]
    --rates R[,...]     W4: only requests at these rates a second, and no search for the highest
    --out DIR           where every round goes, as JSON [default: target/compare]
    --check             only check the candidates, and run all workloads in miniature
    --list              the workloads and their candidates
    --help              this text

Run by anything but `cargo bench`, which passes --bench, it only checks: `cargo test --all-targets`
must not measure.

The tables go to the standard output, progress to the standard error. A workload replaces its own
file in DIR; `benches/plot.py DIR` makes pages and plots of what DIR has.";

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

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    Full,
    Quick,
    /// As little as shows that a workload's assertions hold.
    Tiny,
}

/// The one round that this process is to measure for its parent.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) workload: String,
    pub(crate) candidate: String,
    pub(crate) case: usize,
}

/// What to run, all defaults filled in.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) scale: Scale,
    pub(crate) check_only: bool,
    pub(crate) list: bool,
    /// Whether a last table shows everything side by side.
    pub(crate) readme: bool,
    rounds: Option<usize>,
    pub(crate) lives: usize,
    pub(crate) parked: Vec<usize>,
    /// The same where memory is measured.
    pub(crate) resident: Vec<usize>,
    pub(crate) keys: Vec<usize>,
    pub(crate) threads: Vec<usize>,
    pub(crate) seconds: Option<usize>,
    pub(crate) rates: Option<Vec<usize>>,
    pub(crate) out: PathBuf,
    pub(crate) child: Option<Child>,
    only: Vec<String>,
    candidates: Vec<String>,
}

#[derive(Default)]
struct Given {
    readme: bool,
    quick: bool,
    check: bool,
    list: bool,
    bench: bool,
    rounds: Option<usize>,
    lives: Option<usize>,
    parked: Option<Vec<usize>>,
    keys: Option<Vec<usize>>,
    threads: Option<Vec<usize>>,
    seconds: Option<usize>,
    rates: Option<Vec<usize>>,
    out: Option<PathBuf>,
    child: Option<Child>,
    only: Vec<String>,
    candidates: Vec<String>,
}

impl Options {
    /// Reads the process's arguments; ends it with a message where they make no sense.
    pub(crate) fn from_arguments() -> Self {
        match Given::parse(std::env::args().skip(1)) {
            Ok(given) => Self::fill_in(given),
            Err(Stop::Help) => {
                println!("{HELP}");
                exit(0);
            }
            Err(Stop::Wrong(message)) => {
                eprintln!("{message}\n\n{HELP}");
                exit(2);
            }
        }
    }

    fn fill_in(mut given: Given) -> Self {
        if given.readme {
            let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            if given.only.is_empty() {
                given.only = owned(&README_WORKLOADS);
            }
            if given.candidates.is_empty() {
                given.candidates = owned(&README_CANDIDATES);
            }
            given.parked.get_or_insert_with(|| vec![1_000]);
        }
        let check_only = given.check || !given.bench;
        let scale = match (check_only, given.quick) {
            (true, _) => Scale::Tiny,
            (false, true) => Scale::Quick,
            (false, false) => Scale::Full,
        };
        let all_parked: &[usize] = scale.pick(
            &[1_000, 100_000, 1_000_000][..],
            &[1_000, 100_000],
            &[1_000],
        );
        let all_resident: &[usize] = scale.pick(&[1_000_000, 10_000_000][..], &[300_000], &[1_000]);
        Self {
            scale,
            check_only,
            list: given.list,
            readme: given.readme,
            rounds: given.rounds,
            lives: given.lives.unwrap_or(scale.pick(2_000_000, 200_000, 5_000)),
            resident: given
                .parked
                .clone()
                .unwrap_or_else(|| all_resident.to_vec()),
            parked: given.parked.unwrap_or_else(|| all_parked.to_vec()),
            keys: given.keys.unwrap_or_else(|| vec![1, 3]),
            threads: given.threads.unwrap_or_else(threads),
            seconds: given.seconds,
            rates: given.rates,
            out: given.out.unwrap_or_else(default_out),
            child: given.child,
            only: given.only,
            candidates: given.candidates,
        }
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

impl Given {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Stop> {
        let mut given = Self::default();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .ok_or_else(|| Stop::Wrong(format!("{argument} needs a value")))
            };
            match argument.as_str() {
                "readme" => given.readme = true,
                "--quick" => given.quick = true,
                "--check" => given.check = true,
                "--list" => given.list = true,
                "--rounds" => given.rounds = Some(number(&value()?)?),
                "--lives" => given.lives = Some(number(&value()?)?),
                "--parked" => given.parked = Some(numbers(&value()?)?),
                "--keys" => given.keys = Some(numbers(&value()?)?),
                "--threads" => given.threads = Some(numbers(&value()?)?),
                "--seconds" => given.seconds = Some(number(&value()?)?),
                "--rates" => given.rates = Some(numbers(&value()?)?),
                "--out" => given.out = Some(value()?.into()),
                "--only" => given.only = names(&value()?),
                "--candidates" => given.candidates = names(&value()?),
                // For the harness itself: workload, candidate, number of the case.
                "--child" => {
                    given.child = Some(Child {
                        workload: value()?,
                        candidate: value()?,
                        case: value()?
                            .parse()
                            .map_err(|_| Stop::Wrong("--child is for the harness".to_owned()))?,
                    });
                }
                "--help" | "-h" => return Err(Stop::Help),
                "--bench" => given.bench = true,
                unknown => return Err(Stop::Wrong(format!("unknown option {unknown}"))),
            }
        }
        Ok(given)
    }
}

enum Stop {
    Help,
    Wrong(String),
}

/// 1, 2, 4, ... threads, as many as there are cores for.
fn threads() -> Vec<usize> {
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

fn names(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}

fn numbers(list: &str) -> Result<Vec<usize>, Stop> {
    list.split(',').map(number).collect()
}

fn number(text: &str) -> Result<usize, Stop> {
    match text.replace('_', "").parse() {
        Ok(0) | Err(_) => Err(Stop::Wrong(format!("{text} is not a number above 0"))),
        Ok(number) => Ok(number),
    }
}
