//! Reads the scenarios of `tests/goldens/dmsetup` (its README tells the format) and replays them
//! with [`udm_client::dmsetup::main`] over any transport.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;
use udm_client::dmsetup::{self, Clock, DmTransport, Env};

/// A backing device of the scenarios, of 262144 sectors.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    pub(crate) path: String,
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) name: String,
}

/// Where a scenario is replayed.
pub(crate) struct Place {
    /// `@DEV0@` to `@DEV3@`.
    pub(crate) backing: Vec<Backing>,
    pub(crate) dm_major: u32,
    /// `@DM_DIR@`, without a slash at its end.
    pub(crate) node_dir: String,
    pub(crate) sysfs: PathBuf,
    /// The scenario's own directory, empty at first.
    pub(crate) cwd: PathBuf,
}

/// What a scenario does besides commands.
pub(crate) trait World: DmTransport {
    /// Open a mapped device and keep it open.
    fn hold(&mut self, name: &str);
    /// Close it.
    fn release(&mut self, name: &str);
    /// What `@ node` shows; `None` where there are no nodes to look at.
    fn node(&mut self, name: &str) -> Option<String>;
}

/// One step of a scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    /// The line in the file, from 1.
    pub(crate) line: usize,
    /// A command, after `$ `, or a directive, after `@ `.
    pub(crate) text: String,
    pub(crate) is_command: bool,
    pub(crate) input: String,
    pub(crate) stdout: String,
    pub(crate) exit_code: i32,
    pub(crate) compare_stdout: bool,
    pub(crate) compare_code: bool,
}

/// A step that came out otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Diff {
    pub(crate) line: usize,
    pub(crate) step: String,
    pub(crate) expected: String,
    pub(crate) got: String,
    pub(crate) stderr: String,
}

impl std::fmt::Display for Diff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, step, expected, got, stderr } = self;
        write!(f, "line {line}: {step}\n--- expected\n{expected}--- got\n{got}--- stderr\n{stderr}")
    }
}

/// The steps of a scenario.
pub(crate) fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let rest = line.get(2..).unwrap_or("");
        match line.as_bytes().first() {
            Some(kind @ (b'$' | b'@')) => steps.push(Step {
                line: i + 1,
                text: rest.to_owned(),
                is_command: *kind == b'$',
                compare_stdout: true,
                compare_code: true,
                ..Step::default()
            }),
            None | Some(b'#' | b'!' | b'k') => {}
            Some(kind) => {
                let step = steps.last_mut().unwrap_or_else(|| panic!("line {}: no step yet", i + 1));
                match kind {
                    b'<' => step.input += &format!("{rest}\n"),
                    b'|' => step.stdout += &format!("{rest}\n"),
                    b'\\' => {
                        step.stdout.pop();
                    }
                    b'?' => step.exit_code = rest.parse().unwrap_or_else(|_| panic!("line {}: {line}", i + 1)),
                    b'~' => {
                        step.compare_stdout &= !rest.starts_with("stdout") && !rest.starts_with("step");
                        step.compare_code &= !rest.starts_with("step");
                    }
                    _ => panic!("line {}: not understood: {line}", i + 1),
                }
            }
        }
    }
    steps
}

/// The words of a command line: `'…'` and `"…"` are taken as they stand.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut open, mut quote) = (String::new(), false, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                open = true;
            }
            (None, ' ') => {
                if open {
                    words.push(std::mem::take(&mut word));
                }
                open = false;
            }
            (_, c) => {
                word.push(c);
                open = true;
            }
        }
    }
    if open {
        words.push(word);
    }
    words
}

impl Place {
    fn expand(&self, text: &str) -> String {
        let mut text = text.replace("@DM_MAJOR@", &self.dm_major.to_string()).replace("@NL@", "\n");
        text = text.replace("@DM_DIR@", &self.node_dir);
        for (i, device) in self.backing.iter().enumerate() {
            let (major, minor) = (device.major, device.minor);
            text = text
                .replace(&format!("@DEV{i}@"), &device.path)
                .replace(&format!("@DEV{i}_MM@"), &format!("{major}:{minor}"))
                .replace(&format!("@DEV{i}_MAJOR@"), &major.to_string())
                .replace(&format!("@DEV{i}_MINOR@"), &minor.to_string())
                .replace(&format!("@DEV{i}_NAME@"), &device.name);
        }
        text
    }
}

/// A clock that does not wait.
struct NoWait(Duration);

impl Clock for NoWait {
    fn now(&mut self) -> Duration {
        self.0
    }
    fn sleep(&mut self, time: Duration) {
        self.0 += time;
    }
}

/// What a command came to.
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Run one command line; words like `NAME=value` before the program are its environment.
pub(crate) fn run(world: &mut dyn World, place: &Place, line: &str, input: &str) -> Outcome {
    let mut words = words(line);
    let mut vars = HashMap::from([("LC_ALL".to_owned(), "C".to_owned())]);
    while let Some((name, value)) = words.first().and_then(|w| w.split_once('=')) {
        vars.insert(name.to_owned(), value.to_owned());
        words.remove(0);
    }
    let stdout = Shared::default();
    let mut stderr = Vec::new();
    let mut env = Env {
        stdin: &mut BufReader::new(input.as_bytes()),
        stdout: &mut stdout.clone(),
        stderr: &mut stderr,
        transport: &mut Borrowed(world),
        clock: &mut NoWait(Duration::ZERO),
        exec: &mut |args: &[String]| {
            let output = std::process::Command::new(&args[0]).args(&args[1..]).output()?;
            stdout.0.borrow_mut().extend_from_slice(&output.stdout);
            Ok(())
        },
        vars,
        cwd: place.cwd.clone(),
        node_dir: PathBuf::from(&place.node_dir),
        sysfs: place.sysfs.clone(),
        columns: None,
    };
    let code = dmsetup::main(words.into_iter().map(OsString::from).collect(), &mut env);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome { code, stdout: text(&stdout.0.borrow()), stderr: text(&stderr) }
}

/// Standard output that a program run by `--exec` writes to as well.
#[derive(Clone, Default)]
struct Shared(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Borrowed<'a>(&'a mut dyn World);

impl DmTransport for Borrowed<'_> {
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), dmsetup::IoctlError> {
        self.0.ioctl(cmd, buf)
    }
    fn device_stats(&mut self, name: &str) -> Option<serde_json::Value> {
        self.0.device_stats(name)
    }
    fn set_read_ahead(&mut self, name: &str, sectors: u32) {
        self.0.set_read_ahead(name, sectors);
    }
}

/// Replay a scenario on a world without devices. The steps that came out otherwise.
pub(crate) fn replay(world: &mut dyn World, place: &Place, scenario: &str) -> Vec<Diff> {
    let mut diffs = Vec::new();
    for step in parse(scenario) {
        let line = place.expand(&step.text);
        let (got, code, stderr, compare) = if step.is_command {
            let outcome = run(world, place, &line, &place.expand(&step.input));
            (outcome.stdout, outcome.code, outcome.stderr, step.compare_stdout)
        } else {
            let (text, compare) = direct(world, place, &line, &place.expand(&step.input));
            (text, 0, String::new(), compare)
        };
        let expected = place.expand(&step.stdout);
        let differs = compare && got != expected || step.compare_code && code != step.exit_code;
        if differs {
            diffs.push(Diff {
                line: step.line,
                step: step.text,
                expected: format!("{expected}? {}\n", step.exit_code),
                got: format!("{got}? {code}\n"),
                stderr,
            });
        }
    }
    diffs
}

/// A directive: what it shows, and whether that can be compared.
fn direct(world: &mut dyn World, place: &Place, line: &str, input: &str) -> (String, bool) {
    let words = words(line);
    match (words[0].as_str(), words.get(1)) {
        ("hold", Some(name)) => world.hold(name),
        ("release", Some(name)) => world.release(name),
        ("file", Some(name)) => {
            let path: &Path = &place.cwd.join(name);
            std::fs::write(path, input).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        ("node", Some(name)) => match world.node(name) {
            Some(shown) => return (format!("{shown}\n"), true),
            None => return (String::new(), false),
        },
        _ => panic!("not understood: @ {line}"),
    }
    (String::new(), true)
}
