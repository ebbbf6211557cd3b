//! No tracked file names a path of one machine or the host of a package registry:
//! both break on every other machine, and mirrors are the user's choice.

use super::{Finding, Tree};

/// Hosts, spelt in halves so that this file passes its own check.
const HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("repo.maven", ".apache.org"),
    concat!("deb.debian", ".org"),
];

/// Absolute folders that exist on somebody's machine only.
const FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Cargo writes the registry's index into its lock files.
    for (path, text) in tree.texts().filter(|(path, _)| !path.ends_with("Cargo.lock")) {
        for (index, line) in text.lines().enumerate() {
            for host in HOSTS.iter().filter(|host| line.contains(**host)) {
                let message =
                    format!("names the registry host {host}; name the package and leave the host to the user");
                findings.push(Finding::new(path, index + 1, message));
            }
            for folder in FOLDERS.iter().filter(|folder| has_path(line, folder)) {
                let message = format!("names {folder}, a path of one machine; use a relative path or a variable");
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
    findings
}

/// Whether `folder` starts a path in `line`, rather than continuing a relative one.
fn has_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}$)/*".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    #[test]
    fn hosts_and_machine_paths_are_found() {
        for host in HOSTS {
            expect(check, &[("README.md", &format!("\nsee https://{host}/x"))], &["README.md:2"]);
        }
        for folder in FOLDERS {
            expect(check, &[("a.sh", &format!("\ncd {folder}main"))], &["a.sh:2"]);
            expect(check, &[("a.sh", &format!("cd src{folder}main\ncd $X{folder}y"))], &[]);
        }
    }

    #[test]
    fn lock_files_are_cargos() {
        expect(check, &[("Cargo.lock", HOSTS[0]), ("fuzz/Cargo.lock", HOSTS[0])], &[]);
    }
}
