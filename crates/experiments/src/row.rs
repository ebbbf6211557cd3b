//! A row of a report.

use crate::turns::Figures;
use serde::Serialize;
use udm_bench::Spread;

/// The verdict of what was not measured.
pub(crate) const SKIP: &str = "SKIP";

/// One comparison. Fields that do not apply are `None`, and `null` in JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    /// The experiment's name.
    pub(crate) experiment: &'static str,
    /// What this row is of; unique within the report.
    pub(crate) row: String,
    /// Which of several ways of doing it.
    pub(crate) policy: Option<String>,
    /// What lay beneath.
    pub(crate) disk: Option<String>,
    /// Bytes of a chunk or block.
    pub(crate) chunk: Option<u64>,
    /// Bytes of a request.
    pub(crate) size: Option<u64>,
    /// What the seed's author measured, in `unit`.
    pub(crate) seed_figure: Option<f64>,
    /// What the seed's author gained: his figure by his baseline.
    pub(crate) seed_ratio: Option<f64>,
    /// What the figure is compared with, measured in the same run, in `unit`.
    pub(crate) baseline: Option<f64>,
    /// What was measured: the median of the rounds, in `unit`.
    pub(crate) figure: Option<f64>,
    /// `figure` by `baseline`: the median of the rounds' ratios where rounds took turns.
    pub(crate) ratio: Option<f64>,
    /// What the ratio, or without one the figure, has to reach; see `limit_is`.
    pub(crate) limit: Option<f64>,
    /// Seeks of the modelled disk.
    pub(crate) seeks: Option<u64>,
    /// `pass` or `fail`, where there is a limit; `SKIP` where nothing could be measured.
    pub(crate) verdict: Option<&'static str>,
    /// Why nothing was measured.
    pub(crate) reason: Option<String>,
    /// The command that repeats the row.
    pub(crate) command: String,
    /// Of figures and baselines.
    pub(crate) unit: Unit,
    /// `at least` or `at most`.
    pub(crate) limit_is: Option<&'static str>,
    /// The ratio of every round, in their order.
    pub(crate) rounds: Vec<f64>,
}

/// What figures are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) enum Unit {
    /// 10^9 bytes a second.
    #[default]
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// 10^6 bytes a second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// 2^20 bytes a second.
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    /// Nanoseconds each.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Requests a second.
    #[serde(rename = "IOPS")]
    RequestsPerSecond,
    /// Blocks.
    #[serde(rename = "blocks")]
    Blocks,
    /// Per cent.
    #[serde(rename = "%")]
    PerCent,
    /// A number without a unit.
    #[serde(rename = "")]
    None,
}

impl Unit {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::GigabytesPerSecond => "GB/s",
            Self::MegabytesPerSecond => "MB/s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::Nanoseconds => "ns",
            Self::RequestsPerSecond => "IOPS",
            Self::Blocks => "blocks",
            Self::PerCent => "%",
            Self::None => "",
        }
    }
}

/// What a row has to reach, in its ratio if it has one, else in its figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
    /// The same, to the last digit: for what is counted.
    Exactly(f64),
}

impl Row {
    /// The row of what cannot be measured here: neither passed nor failed.
    pub(crate) fn skipped(mut self, reason: impl Into<String>) -> Self {
        self.verdict = Some(SKIP);
        self.reason = Some(reason.into());
        self
    }

    /// The row with one way's figure beside another's, from rounds that took turns. Figures are multiplied by `scale`.
    pub(crate) fn compared(mut self, found: &Figures, way: &str, beside: &str, scale: f64) -> Self {
        let ratios = found.ratios(way, beside);
        self.baseline = Some(found.median(beside) * scale);
        self.figure = Some(found.median(way) * scale);
        self.ratio = Some(Spread::of(&ratios).median);
        self.rounds = ratios;
        self
    }

    /// The row, judged by a limit.
    pub(crate) fn judged(mut self, limit: Limit) -> Self {
        let found = self.ratio.or(self.figure);
        let (value, is) = match limit {
            Limit::AtLeast(value) => (value, "at least"),
            Limit::AtMost(value) => (value, "at most"),
            Limit::Exactly(value) => (value, "exactly"),
        };
        let holds = found.is_some_and(|found| match limit {
            Limit::AtLeast(value) => found >= value,
            Limit::AtMost(value) => found <= value,
            Limit::Exactly(value) => found == value,
        });
        self.limit = Some(value);
        self.limit_is = Some(is);
        self.verdict = Some(if holds { "pass" } else { "fail" });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let judge = |figure, ratio, limit| Row { figure, ratio, ..Row::default() }.judged(limit).verdict;
        assert_eq!(judge(Some(9.9), None, Limit::AtMost(10.0)), Some("pass"));
        assert_eq!(judge(Some(10.1), None, Limit::AtMost(10.0)), Some("fail"));
        // The ratio counts where there is one.
        assert_eq!(judge(Some(9.0), Some(0.9), Limit::AtLeast(1.0)), Some("fail"));
        assert_eq!(judge(Some(9.0), Some(1.0), Limit::AtLeast(1.0)), Some("pass"));
        assert_eq!(judge(Some(9.0), None, Limit::Exactly(9.0)), Some("pass"));
        assert_eq!(judge(None, None, Limit::AtMost(10.0)), Some("fail"), "what was not measured passes nothing");
        assert_eq!(judge(Some(f64::NAN), None, Limit::AtMost(10.0)), Some("fail"));
    }

    #[test]
    fn what_does_not_apply_is_null() {
        let row = serde_json::to_value(Row::default()).unwrap();
        for field in [
            "experiment",
            "row",
            "policy",
            "disk",
            "chunk",
            "size",
            "seed_figure",
            "seed_ratio",
            "baseline",
            "figure",
            "ratio",
            "limit",
            "seeks",
            "verdict",
            "command",
        ] {
            assert!(row.get(field).is_some(), "{field}");
        }
        assert!(row["policy"].is_null() && row["seeks"].is_null());
    }
}
