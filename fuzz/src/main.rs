//! The fuzz driver; `cargo xtask fuzz` calls it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use udm_fuzz::driver::{self, Plan};
use udm_fuzz::{TARGETS, Target};

const USAGE: &str = "\
usage: cargo xtask fuzz [--target NAME] [--seconds N] [--seed N]
       cargo xtask fuzz --target NAME --input FILE
       cargo xtask fuzz --list

Without a target, each gets N seconds (10). Without a seed, the clock gives one and it is printed.";

#[derive(Default)]
struct Options {
    target: Option<&'static Target>,
    seconds: Option<u64>,
    seed: Option<u64>,
    input: Option<PathBuf>,
    /// How the driver calls itself.
    worker: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let flag = args.first().map(String::as_str);
    if let Some("--help" | "-h") = flag {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if flag == Some("--list") {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return ExitCode::SUCCESS;
    }
    match parse(&args).and_then(|options| run(&options)) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("`{name}` needs a value\n\n{USAGE}"))?;
        let number =
            || value.parse::<u64>().map_err(|_| format!("{name}: `{value}` is not a number of seconds or a seed"));
        match name.as_str() {
            "--target" => options.target = Some(find(value)?),
            "--seconds" => options.seconds = Some(number()?),
            "--seed" => options.seed = Some(number()?),
            "--input" => options.input = Some(value.into()),
            "--worker" => options.worker = Some(value.into()),
            _ => return Err(format!("no option is called `{name}`\n\n{USAGE}")),
        }
    }
    Ok(options)
}

fn find(name: &str) -> Result<&'static Target, String> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    Target::find(name).ok_or_else(|| format!("no target is called `{name}`; there are: {}", names.join(", ")))
}

fn run(options: &Options) -> Result<ExitCode, String> {
    if let Some(path) = &options.input {
        let target = options.target.ok_or("`--input` needs `--target`")?;
        let input = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        (target.run)(&input);
        println!("{}: survives {}", target.name, path.display());
        return Ok(ExitCode::SUCCESS);
    }
    let now =
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() << 20 | u64::from(d.subsec_micros()));
    let seed = options.seed.unwrap_or_else(now);
    let time = Duration::from_secs(options.seconds.unwrap_or(10));
    if let Some(progress) = &options.worker {
        let target = options.target.ok_or("`--worker` needs `--target`")?;
        let done = driver::work(Plan { target, seed, time }, progress);
        return done.map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string());
    }
    let mut code = ExitCode::SUCCESS;
    for target in options.target.map_or(TARGETS, std::slice::from_ref) {
        let plan = Plan { target, seed, time };
        let told = |error: std::io::Error| format!("{}: {error}", target.name);
        match driver::monitor(plan, |progress| worker(plan, progress)).map_err(told)? {
            Ok(last) => println!("{}: {} inputs of seed {seed} survived", target.name, last + 1),
            Err(crash) => {
                println!("{}", driver::keep(plan, &crash).map_err(told)?);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// This program again, as the worker of `plan`.
fn worker(plan: Plan, progress: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into()));
    command.args(["--target", plan.target.name, "--seed", &plan.seed.to_string()]);
    command.args(["--seconds", &plan.time.as_secs().to_string(), "--worker"]).arg(progress);
    command
}
