//! The command line.

use crate::scenario::Scenario;

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) operations: u32,
}

pub(crate) fn usage() -> String {
    let mut usage = "\
usage: abuse [--only NAME[,NAME...]] [--operations N]
       abuse --help

  --only NAMES     these scenarios, of those below
  --operations N   in the large scenarios (default: 1000000; at least 1000, at most 4000000)

"
    .to_owned();
    for scenario in Scenario::ALL {
        usage += &format!("  {:<10} {}\n", scenario.name(), scenario.about());
    }
    usage.trim_end().to_owned()
}

/// Reads the arguments that follow the program's name. `None`: asked for help.
pub(crate) fn parse(
    mut arguments: impl Iterator<Item = String>,
) -> Result<Option<Options>, String> {
    let mut options = Options {
        scenarios: Scenario::ALL.to_vec(),
        operations: 1_000_000,
    };
    while let Some(option) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.ok_or_else(|| format!("{option} needs a value"))
        };
        match option.as_str() {
            "--help" => return Ok(None),
            "--only" => {
                let named = |name: &str| {
                    let mut all = Scenario::ALL.into_iter();
                    let found = all.find(|scenario| scenario.name() == name);
                    found.ok_or_else(|| format!("there is no scenario '{name}'"))
                };
                options.scenarios = value()?.split(',').map(named).collect::<Result<_, _>>()?;
            }
            "--operations" => {
                let text = value()?;
                let number = text.parse().ok();
                options.operations = number
                    .filter(|number| (1_000..=4_000_000).contains(number))
                    .ok_or_else(|| format!("--operations cannot be '{text}'"))?;
            }
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    Ok(Some(options))
}
