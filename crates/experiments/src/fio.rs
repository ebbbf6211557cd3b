//! fio, the program: for what is to be measured by somebody else's generator, of the kernel's devices and of udm's.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use udm_bench::Error;

/// What one measurement asks for: random reads and writes, half and half, by fio's names.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) bs: u64,
    pub(super) numjobs: usize,
    pub(super) iodepth: usize,
    pub(super) runtime: Duration,
}

/// A way to what is measured.
#[derive(Clone)]
pub(super) enum Via {
    /// One of fio's own engines on a file or block device.
    Engine(&'static str, PathBuf),
    /// udm's engine, with a table in fio's own process.
    Udm { engine: PathBuf, concise: String },
    /// fio's NBD client.
    Nbd { uri: String },
}

impl Via {
    /// fio's options.
    fn options(&self) -> Vec<String> {
        match self {
            // fio takes a colon for the end of a name.
            Self::Engine(name, file) => {
                let file = file.to_string_lossy().replace('\\', "\\\\").replace(':', "\\:");
                vec![format!("--ioengine={name}"), format!("--filename={file}"), "--direct=1".to_owned()]
            }
            Self::Udm { engine, concise } => vec![
                format!("--ioengine=external:{}", engine.display()),
                "--thread=1".to_owned(),
                format!("--concise={concise}"),
            ],
            Self::Nbd { uri } => vec!["--ioengine=nbd".to_owned(), format!("--uri={uri}")],
        }
    }

    /// fio's words for a measurement of `shape`. The first job that is done ends all, as in the seed's script: fio
    /// counts what all have done in the time of one, and of 99 jobs on few CPUs the last begins when others are half
    /// done.
    fn words(&self, shape: Shape) -> Vec<String> {
        let mut words = vec!["--name=udm-bench".to_owned()];
        words.extend(self.options());
        words.extend(
            ["--rw=randrw", "--group_reporting", "--exitall", "--norandommap", "--time_based"].map(str::to_owned),
        );
        words.push(format!("--bs={}", shape.bs));
        words.push(format!("--numjobs={}", shape.numjobs));
        words.push(format!("--iodepth={}", shape.iodepth));
        // Not counted: a new process meets every page of its buffers and mappings for the first time.
        words.push(format!("--ramp_time={}ms", shape.runtime.as_millis() / 2));
        words.push(format!("--runtime={}ms", shape.runtime.as_millis()));
        words
    }

    /// The command, as one would type it.
    pub(super) fn command(&self, shape: Shape) -> String {
        let quoted = self.words(shape).into_iter().map(|word| {
            let plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_=./:,".contains(&b));
            if plain { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
        });
        format!("fio {}", quoted.collect::<Vec<_>>().join(" "))
    }

    /// Requests of both directions a second. Blocks as long as it takes.
    pub(super) fn measure(&self, shape: Shape) -> Result<f64, Error> {
        let failed = |source| Error::System { what: self.command(shape), source };
        let output =
            Command::new("fio").args(self.words(shape)).arg("--output-format=json").output().map_err(failed)?;
        if !output.status.success() {
            let said = format!("{}\n{}", text(&output.stderr), text(&output.stdout));
            return Err(failed(io::Error::other(first_complaint(&said))));
        }
        iops(&text(&output.stdout)).map_err(|what| failed(io::Error::new(ErrorKind::InvalidData, what)))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The first line that says something.
fn first_complaint(said: &str) -> String {
    let line = said.lines().map(str::trim).find(|line| line.len() > 2);
    line.unwrap_or("it failed, and did not say why").to_owned()
}

/// What fio found. It may print notes before the JSON.
fn iops(said: &str) -> Result<f64, String> {
    let json = said.find('{').map(|at| &said[at..]).ok_or("it printed no JSON")?;
    // Others' notes may follow it, too.
    let found = serde_json::Deserializer::from_str(json).into_iter::<serde_json::Value>().next();
    let found = found.ok_or("it printed no JSON")?.map_err(|e| format!("its JSON: {e}"))?;
    let job = &found["jobs"][0];
    if let Some(error) = job["error"].as_i64().filter(|error| *error != 0) {
        return Err(format!("its job ended with error {error}"));
    }
    match (job["read"]["iops"].as_f64(), job["write"]["iops"].as_f64()) {
        (Some(reads), Some(writes)) => Ok(reads + writes),
        _ => Err("its JSON has no jobs[0].read.iops and .write.iops".to_owned()),
    }
}

/// Whether fio is there, else why not.
pub(super) fn is_there() -> Result<(), String> {
    match Command::new("fio").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("fio --version: {}", first_complaint(&text(&output.stderr)))),
        Err(e) if e.kind() == ErrorKind::NotFound => Err("fio is not installed".to_owned()),
        Err(e) => Err(format!("fio: {e}")),
    }
}

/// udm's engine, if it is built and the installed fio takes it, else why not.
pub(super) fn engine(file: Option<&Path>) -> Result<PathBuf, String> {
    is_there()?;
    let file = file.ok_or("the fio engine is not built: make fio-engine FIO_SRC=DIR, or --fio-engine FILE")?;
    let file = file.canonicalize().map_err(|e| format!("{}: {e}", file.display()))?;
    let via = Via::Udm { engine: file.clone(), concise: "probe,,,,0 2048 ram".to_owned() };
    let shape = Shape { bs: 4096, numjobs: 1, iodepth: 1, runtime: Duration::from_millis(2) };
    via.measure(shape).map(|_| file).map_err(|e| match e {
        Error::System { source, .. } => format!("fio does not take the engine: {source}"),
        e => e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { bs: 4096, numjobs: 99, iodepth: 12, runtime: Duration::from_millis(500) };

    #[test]
    fn what_fio_prints() {
        let job = |error: i32, read: &str| {
            format!(r#"{{"jobs":[{{"error":{error},"read":{{{read}}},"write":{{"iops":2.5}}}}]}}"#)
        };
        assert_eq!(iops(&job(0, r#""iops":1.0"#)), Ok(3.5));
        assert_eq!(iops(&format!("fio: a note\n{}\nanother", job(0, r#""iops":1"#))), Ok(3.5));
        assert!(iops(&job(5, r#""iops":1.0"#)).unwrap_err().contains("error 5"));
        for bad in ["", "fio: no", "{", "[]{}", r#"{"jobs":[]}"#] {
            assert!(iops(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn commands_can_be_typed() {
        let of = |via: Via| via.command(SHAPE);
        let plain = of(Via::Engine("libaio", "/dev/loop0".into()));
        assert!(
            plain.starts_with("fio --name=udm-bench --ioengine=libaio --filename=/dev/loop0 --direct=1 "),
            "{plain}"
        );
        assert!(plain.ends_with("--bs=4096 --numjobs=99 --iodepth=12 --ramp_time=250ms --runtime=500ms"), "{plain}");
        let colon = of(Via::Engine("io_uring", "/a:b/it's".into()));
        assert!(colon.contains(r"'--filename=/a\:b/it'\''s'"), "{colon}");
        let udm = of(Via::Udm { engine: "/e.so".into(), concise: "l,,,,0 8 ram".into() });
        assert!(udm.contains("--thread=1 '--concise=l,,,,0 8 ram'"), "{udm}");
    }

    #[test]
    fn an_engine_that_is_not_there() {
        let missing = Path::new("no/such/engine.so");
        let told = [engine(None), engine(Some(missing))].map(Result::unwrap_err);
        assert!(told[0].contains("not built") || told[0].contains("not installed"), "{told:?}");
        assert!(told[1].contains("no/such/engine.so") || told[1].contains("not installed"), "{told:?}");
    }
}
