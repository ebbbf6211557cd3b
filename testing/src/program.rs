//! Programs that nobody here wrote.

use std::path::Path;

/// Where programs are looked for, those of administrators included, which a user's own path leaves out.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether a program is there; prints `SKIP` if not.
#[must_use]
pub fn installed(program: &str) -> bool {
    let found = SEARCH_PATH.split(':').any(|folder| Path::new(folder).join(program).exists());
    if !found {
        println!("SKIP {program} is not installed");
    }
    found
}
