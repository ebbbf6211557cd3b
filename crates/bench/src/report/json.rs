//! The report for programs, with the field names of fio's `--output-format=json` (fio 3.33). What fio does not know is
//! under `udm`.

use super::Report;
use crate::latency::PERCENTILES;
use crate::{CompletionMode, Latencies, Outcome, Spread, Subject, Tally};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Write};

#[derive(Serialize)]
struct Document {
    #[serde(rename = "fio version")]
    version: String,
    #[serde(rename = "global options")]
    options: BTreeMap<&'static str, String>,
    /// The subject, then what it was compared with; each has all its rounds together.
    jobs: Vec<Job>,
    udm: Extra,
}

#[derive(Serialize)]
struct Job {
    jobname: String,
    groupid: u32,
    error: u32,
    elapsed: u64,
    #[serde(rename = "job options")]
    options: BTreeMap<&'static str, String>,
    read: Direction,
    write: Direction,
    /// Always nothing.
    trim: Direction,
}

#[derive(Serialize)]
struct Direction {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    /// Milliseconds.
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    clat_ns: Clat,
    lat_ns: Lat,
}

#[derive(Serialize)]
struct Lat {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
}

#[derive(Serialize)]
struct Clat {
    #[serde(flatten)]
    lat: Lat,
    #[serde(skip_serializing_if = "Percentiles::is_empty")]
    percentile: Percentiles,
}

/// From the lowest to the highest, as fio orders them.
struct Percentiles(Vec<(String, u64)>);

impl Percentiles {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Percentiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(percent, ns)| (percent, ns)))
    }
}

#[derive(Serialize)]
struct Extra {
    version: &'static str,
    /// Which latencies were measured: `off`, `all` or `sample:N`.
    lat: String,
    verified: bool,
    rounds: Vec<RoundFigures>,
    iops: SpreadFigures,
    against_iops: Option<SpreadFigures>,
    ratio: Option<SpreadFigures>,
    /// By device.
    totals: BTreeMap<String, TotalFigures>,
}

#[derive(Serialize)]
struct RoundFigures {
    iops: f64,
    against_iops: Option<f64>,
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct SpreadFigures {
    median: f64,
    min: f64,
    max: f64,
    iqr: f64,
}

#[derive(Serialize)]
struct TotalFigures {
    remapped: u64,
    cloned: u64,
    polls: PollFigures,
}

#[derive(Serialize)]
struct PollFigures {
    fast: u64,
    sub: u64,
    default: u64,
}

impl From<Spread> for SpreadFigures {
    fn from(s: Spread) -> Self {
        Self { median: s.median, min: s.min, max: s.max, iqr: s.iqr() }
    }
}

impl From<&Latencies> for Lat {
    fn from(l: &Latencies) -> Self {
        Self { min: l.min(), max: l.max(), mean: l.mean(), stddev: l.deviation(), count: l.count() }
    }
}

fn direction(outcome: &Outcome, tally: &Tally) -> Direction {
    let latencies = &tally.latencies;
    let shown = if latencies.count() == 0 { &[][..] } else { &PERCENTILES[..] };
    let percentile = Percentiles(shown.iter().map(|p| (format!("{p:.6}"), latencies.percentile(*p))).collect());
    let bw_bytes = outcome.per_second(tally.bytes) as u64;
    Direction {
        io_bytes: tally.bytes,
        io_kbytes: tally.bytes >> 10,
        bw_bytes,
        bw: bw_bytes >> 10,
        iops: outcome.per_second(tally.ios),
        runtime: outcome.elapsed_ns / 1_000_000,
        total_ios: tally.ios,
        short_ios: 0,
        drop_ios: 0,
        clat_ns: Clat { lat: latencies.into(), percentile },
        lat_ns: latencies.into(),
    }
}

fn job(subject: &Subject, outcome: &Outcome) -> Job {
    Job {
        jobname: subject.name().to_owned(),
        groupid: 0,
        error: 0,
        elapsed: outcome.elapsed_ns.div_ceil(1_000_000_000),
        options: BTreeMap::from([("filename", subject.name().to_owned())]),
        read: direction(outcome, &outcome.reads),
        write: direction(outcome, &outcome.writes),
        trim: direction(outcome, &Tally::default()),
    }
}

fn options(report: &Report<'_>) -> BTreeMap<&'static str, String> {
    let load = report.load;
    let mut options = BTreeMap::from([
        ("rw", load.rw.name().to_owned()),
        ("bs", load.bs.to_string()),
        ("iodepth", load.iodepth.to_string()),
        ("numjobs", load.numjobs.to_string()),
        ("randseed", load.seed.to_string()),
        ("hipri", u8::from(load.completion == CompletionMode::Poll).to_string()),
        ("completion", load.completion.name().to_owned()),
        ("group_reporting", "1".to_owned()),
    ]);
    options.extend(load.runtime.map(|time| ("runtime", time.as_secs_f64().to_string())));
    options.extend(load.number_ios.map(|n| ("number_ios", n.to_string())));
    options.extend(load.size.map(|size| ("size", size.to_string())));
    if load.rw.reads() && load.rw.writes() {
        options.insert("rwmixread", load.rwmixread.to_string());
    }
    options
}

pub(crate) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let found = report.found;
    let mut jobs = vec![job(report.subject, &found.total())];
    if let (Some(other), Some(total)) = (report.against, found.against_total()) {
        jobs.push(job(other, &total));
    }
    let totals = std::iter::once(report.subject).chain(report.against).filter_map(|s| {
        let totals = s.totals()?;
        let udm_core::Polls { fast, sub, default } = totals.polls;
        let polls = PollFigures { fast, sub, default };
        Some((s.name().to_owned(), TotalFigures { remapped: totals.remapped, cloned: totals.cloned, polls }))
    });
    let rounds = found.rounds.iter().map(|r| RoundFigures {
        iops: r.outcome.iops(),
        against_iops: r.against.as_ref().map(Outcome::iops),
        ratio: r.ratio(),
    });
    let document = Document {
        version: format!("udm-{}", env!("CARGO_PKG_VERSION")),
        options: options(report),
        jobs,
        udm: Extra {
            version: env!("CARGO_PKG_VERSION"),
            lat: report.load.lat.text(),
            verified: report.load.verify.is_some(),
            rounds: rounds.collect(),
            iops: found.iops().into(),
            against_iops: found.against_iops().map(Into::into),
            ratio: found.ratio().map(Into::into),
            totals: totals.collect(),
        },
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lat as LatOf, Load, Rw, compare};
    use serde_json::Value;

    fn document(rw: Rw, lat: LatOf, rounds: usize) -> Value {
        let domain = udm_io::Domain::default();
        let (a, b) = (Subject::memcpy(1 << 20).unwrap(), Subject::memcpy(1 << 20).unwrap());
        let load = Load { rw, lat, bs: 512, runtime: None, number_ios: Some(1000), ..Load::default() };
        let found = compare(&domain, &a, Some(&b), &load, rounds, |_, _| ()).unwrap();
        let mut out = Vec::new();
        write(&Report { load: &load, subject: &a, against: Some(&b), found: &found }, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn fields_are_fios() {
        let doc = document(Rw::RandRead, LatOf::Sample(1), 2);
        assert!(doc["fio version"].as_str().unwrap().starts_with("udm-"));
        assert_eq!(doc["global options"]["rw"], "randread");
        assert_eq!(doc["global options"]["bs"], "512");
        let jobs = doc["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), 2);
        let read = &jobs[0]["read"];
        assert_eq!((&jobs[0]["jobname"], &jobs[0]["error"]), (&Value::from("memcpy"), &Value::from(0)));
        assert_eq!((&read["total_ios"], &read["io_bytes"]), (&Value::from(2000), &Value::from(1_024_000)));
        assert!(read["iops"].as_f64().unwrap() > 0.0 && read["bw_bytes"].as_u64().unwrap() > 0);
        assert_eq!(read["clat_ns"]["N"], 2000);
        let median = read["clat_ns"]["percentile"]["50.000000"].as_u64().unwrap();
        let top = read["clat_ns"]["percentile"]["99.990000"].as_u64().unwrap();
        assert!(median > 0 && median <= top);
        assert_eq!(read["lat_ns"]["min"], read["clat_ns"]["min"]);
        assert_eq!((&jobs[0]["write"]["total_ios"], &jobs[0]["trim"]["total_ios"]), (&Value::from(0), &Value::from(0)));
        assert!(jobs[0]["write"]["clat_ns"].get("percentile").is_none());
        assert!(doc.get("disk_util").is_none(), "there is no disk");
        assert_eq!(doc["udm"]["rounds"].as_array().unwrap().len(), 2);
        assert!(doc["udm"]["ratio"]["median"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn what_was_not_measured_is_not_there() {
        let doc = document(Rw::Write, LatOf::Off, 1);
        assert_eq!(doc["udm"]["lat"], "off");
        assert_eq!(doc["jobs"][0]["write"]["clat_ns"]["N"], 0);
        assert!(doc["jobs"][0]["write"]["clat_ns"].get("percentile").is_none());
        assert_eq!(doc["jobs"][0]["write"]["total_ios"], 1000);
    }
}
