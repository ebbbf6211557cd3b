//! The report for people: at most 100 columns.

use super::Report;
use crate::{Outcome, Spread, Subject, Tally};
use std::io::{self, Write};
use udm_core::Polls;

/// Requests a second with three digits: `5.31M`.
pub(crate) fn rate(iops: f64) -> String {
    scaled(iops, 1000.0, &["", "k", "M", "G"]) + " IOPS"
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // What would be printed as 1000 belongs to the next unit.
    while value >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{}", units[unit])
}

fn nanos(ns: u64) -> String {
    scaled(ns as f64, 1000.0, &["ns", "us", "ms", "s"])
}

pub(crate) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let load = report.load;
    writeln!(
        out,
        "{} {} bytes, iodepth {}, numjobs {}, {} round{}, seed {}, completion by {}",
        load.rw.name(),
        load.bs,
        load.iodepth,
        load.numjobs,
        report.found.rounds.len(),
        if report.found.rounds.len() == 1 { "" } else { "s" },
        load.seed,
        load.completion.name(),
    )?;
    writeln!(
        out,
        "\n{:<20} {:>5} {:>12} {:>11} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "device", "op", "IOPS", "bytes/s", "ns/IO", "p50", "p99", "p99.9", "max"
    )?;
    subject(out, report.subject, &report.found.total(), report)?;
    if let (Some(other), Some(total)) = (report.against, report.found.against_total()) {
        subject(out, other, &total, report)?;
    }
    writeln!(out)?;
    match load.lat {
        crate::Lat::Off => {}
        _ if load.verify.is_some() => writeln!(out, "latencies were not measured: the data was checked")?,
        crate::Lat::Sample(1) => writeln!(out, "latency of every I/O, at a cost of about 50 ns each")?,
        crate::Lat::Sample(n) => writeln!(out, "latency of one I/O in {n}")?,
    }
    if load.verify.is_some() {
        writeln!(out, "verified: what was read was what had been written")?;
    }
    counters(out, report)?;
    spreads(out, report)
}

fn subject(out: &mut impl Write, subject: &Subject, total: &Outcome, report: &Report<'_>) -> io::Result<()> {
    for (op, tally) in [("read", &total.reads), ("write", &total.writes)] {
        if tally.ios > 0 {
            row(out, subject.name(), op, total, tally, report.load.numjobs)?;
        }
    }
    Ok(())
}

fn row(out: &mut impl Write, name: &str, op: &str, total: &Outcome, tally: &Tally, jobs: usize) -> io::Result<()> {
    let latencies = &tally.latencies;
    let lat = |value: u64| if latencies.count() == 0 { "-".to_owned() } else { nanos(value) };
    let iops = total.per_second(tally.ios);
    writeln!(
        out,
        "{:<20} {op:>5} {:>12} {:>11} {:>8.1} {:>8} {:>8} {:>8} {:>8}",
        shortened(name, 20),
        rate(iops),
        scaled(total.per_second(tally.bytes), 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]),
        1e9 / total.iops() * jobs as f64,
        lat(latencies.percentile(50.0)),
        lat(latencies.percentile(99.0)),
        lat(latencies.percentile(99.9)),
        lat(latencies.max()),
    )
}

/// A name cut to `width`, with a mark where it was cut.
fn shortened(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    name.chars().take(width - 1).chain(std::iter::once('~')).collect()
}

fn counters(out: &mut impl Write, report: &Report<'_>) -> io::Result<()> {
    for subject in std::iter::once(report.subject).chain(report.against) {
        if let Some(totals) = subject.totals() {
            let (polls, name) = (totals.polls, shortened(subject.name(), 40));
            write!(out, "{name}: {} remapped, {} cloned", totals.remapped, totals.cloned)?;
            if polls != Polls::default() {
                write!(out, "; polled: {} fast, {} sub, {} default", polls.fast, polls.sub, polls.default)?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

fn spreads(out: &mut impl Write, report: &Report<'_>) -> io::Result<()> {
    if report.found.rounds.len() > 1 {
        let iops = |s: Spread| format!("median {} ({} .. {})", rate(s.median), rate(s.min), rate(s.max));
        writeln!(out, "{}: {}", shortened(report.subject.name(), 40), iops(report.found.iops()))?;
        if let (Some(other), Some(spread)) = (report.against, report.found.against_iops()) {
            writeln!(out, "{}: {}", shortened(other.name(), 40), iops(spread))?;
        }
    }
    if let (Some(other), Some(ratio)) = (report.against, report.found.ratio()) {
        let (subject, other) = (shortened(report.subject.name(), 20), shortened(other.name(), 20));
        let Spread { median, min, max, .. } = ratio;
        writeln!(out, "ratio {subject} / {other}: median {median:.3} ({min:.3} .. {max:.3}, IQR {:.3})", ratio.iqr())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (iops, expect) in
            [(0.0, "0.00 IOPS"), (999.6, "1.00k IOPS"), (12_345.0, "12.3k IOPS"), (5_310_000.0, "5.31M IOPS")]
        {
            assert_eq!(rate(iops), expect);
        }
        assert_eq!(nanos(61), "61.0ns");
        assert_eq!(nanos(1_500_000), "1.50ms");
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abcde~");
    }

    #[test]
    fn fits_a_hundred_columns() {
        let domain = udm_io::Domain::default();
        let name = "n".repeat(127);
        let concise = format!("{name},,,,0 4096 ram");
        let stack = crate::Stack::new(&domain, &concise).unwrap();
        let (subject, floor) = (stack.subject(&name).unwrap(), Subject::memcpy(1 << 20).unwrap());
        let load = crate::Load {
            rw: crate::Rw::RandRw,
            runtime: None,
            number_ios: Some(1000),
            size: Some(1 << 20),
            ..crate::Load::default()
        };
        let found = crate::compare(&domain, &subject, Some(&floor), &load, 3, |_, _| ()).unwrap();
        let mut out = Vec::new();
        write(&Report { load: &load, subject: &subject, against: Some(&floor), found: &found }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        for word in ["randrw 4096 bytes", "memcpy", "p99.9", "0 cloned", "ratio", "IQR", "one I/O in 64"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
