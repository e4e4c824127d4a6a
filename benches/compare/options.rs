//! The command line.

use std::process::exit;

const HELP: &str = "\
Compares the library with its peers on the workloads of the benchmark.

    cargo bench --bench compare -- [OPTIONS]

    --quick             under a minute: fewer lives, and not the million parked
    --only W1[,...]     only these workloads
    --candidates A,B    only these candidates (names as in the table)
    --parked N[,...]    only with so many parked
    --keys K[,...]      only with so many keys for each request
    --rounds N          rounds per case, the table shows their median [default: 5]
    --lives N           measured steps per case and candidate, over all rounds
    --check             only check the candidates, measure nothing
    --help              this text

Run by anything but `cargo bench`, which passes --bench, it only checks: `cargo test --all-targets`
must not measure.

The tables go to the standard output, progress to the standard error, and every round as JSON into
the folder `tmp` of the build folder.";

/// What to run, all defaults filled in.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) check_only: bool,
    pub(crate) rounds: usize,
    pub(crate) lives: usize,
    pub(crate) parked: Vec<usize>,
    pub(crate) keys: Vec<usize>,
    only: Vec<String>,
    candidates: Vec<String>,
}

impl Options {
    /// Reads the process's arguments; ends it with a message where they make no sense.
    pub(crate) fn from_arguments() -> Self {
        match Self::parse(std::env::args().skip(1)) {
            Ok(options) => options,
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

    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Stop> {
        let (mut quick, mut check_only, mut bench) = (false, false, false);
        let (mut rounds, mut lives) = (None, None);
        let (mut parked, mut keys) = (None, None);
        let (mut only, mut candidates) = (Vec::new(), Vec::new());
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .ok_or_else(|| Stop::Wrong(format!("{argument} needs a value")))
            };
            match argument.as_str() {
                "--quick" => quick = true,
                "--check" => check_only = true,
                "--rounds" => rounds = Some(number(&value()?)?),
                "--lives" => lives = Some(number(&value()?)?),
                "--parked" => parked = Some(numbers(&value()?)?),
                "--keys" => keys = Some(numbers(&value()?)?),
                "--only" => only = names(&value()?),
                "--candidates" => candidates = names(&value()?),
                "--help" | "-h" => return Err(Stop::Help),
                "--bench" => bench = true,
                unknown => return Err(Stop::Wrong(format!("unknown option {unknown}"))),
            }
        }
        let all_parked = if quick {
            vec![1_000, 100_000]
        } else {
            vec![1_000, 100_000, 1_000_000]
        };
        Ok(Self {
            quick,
            check_only: check_only || !bench,
            rounds: rounds.unwrap_or(5),
            lives: lives.unwrap_or(if quick { 500_000 } else { 2_000_000 }),
            parked: parked.unwrap_or(all_parked),
            keys: keys.unwrap_or_else(|| vec![1, 3]),
            only,
            candidates,
        })
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

enum Stop {
    Help,
    Wrong(String),
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
