//! `seeds`: the five published experiments, one after the other, and one page that tells what came of them.

mod page;
mod story;

pub(crate) use story::SEEDS;

use crate::experiment::Experiment;
use crate::report::Report;
use crate::row::Row;
use std::path::{Path, PathBuf};

/// A published experiment, and how it is told.
pub(crate) struct Seed {
    /// Its number in the project's papers.
    pub(crate) number: &'static str,
    /// What it was about.
    pub(crate) title: &'static str,
    /// What its author published, in a sentence or two.
    pub(crate) claim: &'static str,
    /// The experiments that repeat it; the first has its name.
    pub(crate) experiments: &'static [&'static Experiment],
    /// The rows that tell it.
    picks: &'static [Pick],
}

/// A row that is told on the page.
struct Pick {
    /// What it is of, and beside what.
    label: &'static str,
    beside: &'static str,
    /// Words that the row's name has, all of them; the first row that does is told.
    words: &'static [&'static str],
}

/// What came of one experiment.
pub(crate) struct Outcome {
    pub(crate) experiment: &'static Experiment,
    /// The report, or why there is none.
    pub(crate) found: Result<Report, String>,
    /// How long it took.
    pub(crate) seconds: f64,
}

/// Of rows with a verdict, how many have which.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Verdicts {
    pass: usize,
    fail: usize,
    skip: usize,
}

impl Verdicts {
    fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        rows.fold(Self::default(), |mut sum, row| {
            match row.verdict {
                Some("pass") => sum.pass += 1,
                Some("fail") => sum.fail += 1,
                Some(_) => sum.skip += 1,
                None => {}
            }
            sum
        })
    }

    fn text(self) -> String {
        format!("{} passed, {} failed, {} skipped", self.pass, self.fail, self.skip)
    }
}

/// All rows as one report, named `seeds`.
pub(crate) fn report(outcomes: &[Outcome], quick: bool, command: String) -> Report {
    let mut method = vec![
        "What five published pieces of work on the kernel's device mapper found, and what udm does of the same, measured in one run. \
         A baseline is measured in the same rounds as the figure beside it; the seed's figures are of its author's machine, so that \
         ratios, not figures, compare."
            .to_owned(),
    ];
    let mut rows = Vec::new();
    for outcome in outcomes {
        let name = outcome.experiment.name;
        method.push(match &outcome.found {
            Ok(report) => {
                let verdicts = Verdicts::of(report.rows.iter()).text();
                format!("[{name}]({name}.md): {verdicts}; {:.0} s.", outcome.seconds)
            }
            Err(why) => format!("**{name}: not measured: {why}**"),
        });
        match &outcome.found {
            Ok(report) => rows.extend(report.rows.iter().cloned()),
            Err(why) => {
                let row = Row { experiment: name, row: name.to_owned(), command: command.clone(), ..Row::default() };
                rows.push(row.skipped(why.clone()));
            }
        }
    }
    let title = "Five published experiments, repeated";
    Report { name: "seeds", title, method, rows, charts: Vec::new(), quick, command }
}

/// Writes the page, `index.html`. Blocks.
pub(crate) fn write_page(outcomes: &[Outcome], report: &Report, folder: &Path) -> Result<PathBuf, udm_bench::Error> {
    let path = folder.join("index.html");
    let failed = |source| udm_bench::Error::System { what: format!("writing {}", path.display()), source };
    std::fs::write(&path, page::html(outcomes, report)).map_err(failed)?;
    Ok(path)
}

impl Pick {
    fn find<'a>(&self, rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
        let has_all = |row: &&Row| self.words.iter().all(|word| row.row.contains(word));
        rows.into_iter().find(has_all)
    }
}

impl Seed {
    /// The rows of its experiments.
    fn rows<'a>(&self, outcomes: &'a [Outcome]) -> impl Iterator<Item = &'a Row> + use<'a> {
        let names: Vec<&str> = self.experiments.iter().map(|e| e.name).collect();
        let reports = outcomes.iter().filter_map(|outcome| outcome.found.as_ref().ok());
        reports.filter(move |report| names.contains(&report.name)).flat_map(|report| &report.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Limit;

    /// As users know them.
    const PUBLISHED: [&str; 5] = ["no-clone", "zero-skip", "loop-ram", "snapshot-cow", "polling"];

    fn outcomes() -> Vec<Outcome> {
        SEEDS
            .iter()
            .flat_map(|seed| seed.experiments.iter().map(move |experiment| (seed, *experiment)))
            .map(|(seed, experiment)| {
                let row = |pick: &Pick| {
                    let row = Row {
                        experiment: experiment.name,
                        row: pick.words.join(" <&> "),
                        seed_figure: Some(8137.0),
                        seed_ratio: Some(1.32),
                        figure: Some(3.0),
                        baseline: Some(2.0),
                        ratio: Some(1.5),
                        ..Row::default()
                    };
                    row.judged(Limit::AtLeast(1.0))
                };
                let found = Report {
                    name: experiment.name,
                    title: "x",
                    method: Vec::new(),
                    rows: seed.picks.iter().map(row).collect(),
                    charts: Vec::new(),
                    quick: true,
                    command: "udm bench x".into(),
                };
                Outcome { experiment, found: Ok(found), seconds: 1.0 }
            })
            .collect()
    }

    #[test]
    fn the_five_are_told() {
        let outcomes = outcomes();
        let report = report(&outcomes, true, "udm bench seeds --quick".into());
        let page = page::html(&outcomes, &report);
        for seed in SEEDS {
            assert!(page.contains(seed.number), "{}", seed.number);
            for pick in seed.picks {
                assert!(pick.find(seed.rows(&outcomes)).is_some(), "{}", pick.label);
                assert!(page.contains(pick.label), "{}", pick.label);
            }
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(!page.contains("<&>"), "what comes from rows is escaped");
        assert!(report.rows.iter().all(|row| row.verdict == Some("pass")));
    }

    #[test]
    fn one_that_failed_is_told_too() {
        let mut outcomes = outcomes();
        outcomes[0].found = Err("no <memory>".into());
        let report = report(&outcomes, false, "udm bench seeds".into());
        assert_eq!(report.rows[0].verdict, Some("SKIP"));
        let page = page::html(&outcomes, &report);
        assert!(page.contains("no &lt;memory&gt;"));
        assert!(report.markdown().contains("not measured: no <memory>"));
    }

    #[test]
    fn every_experiment_of_a_seed_is_known() {
        let told: Vec<&str> = SEEDS.iter().flat_map(|seed| seed.experiments.iter().map(|e| e.name)).collect();
        for name in PUBLISHED {
            assert!(told.contains(&name), "{name}");
        }
    }
}
