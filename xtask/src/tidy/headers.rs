//! The head of every target tells, in this order, what it is for, how a table line
//! reads, what its status says, its messages, and where it differs from the kernel.

use super::rust_file::RustFile;
use super::{Finding, Tree, targets};

const SECTIONS: &[&str] = &["Purpose", "Table", "Status", "Messages", "Differences from the kernel"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    targets::find(tree).iter().flat_map(|target| check_file(target.file)).collect()
}

fn check_file(file: &RustFile) -> Vec<Finding> {
    let header: Vec<(usize, &str)> = file
        .text
        .lines()
        .enumerate()
        .map_while(|(index, line)| Some((index + 1, line.strip_prefix("//!")?.trim())))
        .collect();
    let mut findings = Vec::new();
    let mut last = 0;
    for section in SECTIONS {
        let heading = |line: &str| line.strip_prefix("# ") == Some(*section);
        let Some(position) = header.iter().position(|(_, line)| heading(line)) else {
            let message = format!("the file's head has no section `//! # {section}`");
            findings.push(Finding::new(&file.path, 1, message));
            continue;
        };
        let line = header[position].0;
        if line < last {
            let order = SECTIONS.join(", ");
            let message = format!("section `{section}` is out of order; the order is {order}");
            findings.push(Finding::new(&file.path, line, message));
        }
        last = last.max(line);
        let body = header[position + 1..].iter().map(|(_, line)| *line).take_while(|line| !line.starts_with("# "));
        if body.into_iter().all(str::is_empty) {
            let message = format!("section `{section}` is empty; say \"None.\" when there is nothing to say");
            findings.push(Finding::new(&file.path, line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    const PATH: &str = "crates/targets/src/zero.rs";
    const REST: &str = "pub static TYPE: T = T::new(\"zero\");\n";

    fn header(sections: &[&str]) -> String {
        let sections = sections.iter().map(|name| format!("//! # {name}\n//! None.\n//!\n"));
        sections.collect::<String>() + REST
    }

    #[test]
    fn a_full_header_passes() {
        expect(check, &[(PATH, &header(SECTIONS))], &[]);
    }

    #[test]
    fn a_missing_misplaced_or_empty_section_is_found() {
        let place = |line: usize| format!("{PATH}:{line}");
        expect(check, &[(PATH, &header(&SECTIONS[..4]))], &[&place(1)]);
        let swapped = ["Table", "Purpose", "Status", "Messages", "Differences from the kernel"];
        expect(check, &[(PATH, &header(&swapped))], &[&place(1)]);
        let empty = header(SECTIONS).replacen("//! None.\n", "", 1);
        expect(check, &[(PATH, &empty)], &[&place(1)]);
        expect(check, &[(PATH, REST)], &[&*place(1); 5]);
    }

    #[test]
    fn other_files_need_none() {
        expect(check, &[("crates/targets/src/helper.rs", "fn f() {}")], &[]);
    }
}
