//! Programs of the project that udm runs: where they are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The program of that name: beside this one, as `make` builds them; in the `libexec/udm` of where this one is
/// installed; or on PATH.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    look(own.as_deref().and_then(Path::parent), std::env::var_os("PATH").as_deref(), name)
}

fn look(folder: Option<&Path>, path: Option<&OsStr>, name: &str) -> Option<PathBuf> {
    let near = folder.into_iter().flat_map(|folder| [folder.to_owned(), folder.join("../libexec/udm")]);
    // A relative folder on PATH means another program wherever one stands.
    let far = path.into_iter().flat_map(std::env::split_paths).filter(|folder| folder.is_absolute());
    near.chain(far).map(|folder| folder.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn beside_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let [bin, libexec, other] = ["sbin", "libexec/udm", "other"].map(|folder| root.path().join(folder));
        let path = other.as_os_str();
        for folder in [&bin, &libexec, &other] {
            fs::create_dir_all(folder).unwrap();
        }
        let found = || look(Some(&bin), Some(path), "p").map(|p| p.canonicalize().unwrap());
        assert_eq!(found(), None);
        for folder in [&other, &libexec, &bin] {
            fs::write(folder.join("p"), "").unwrap();
            assert_eq!(found(), Some(folder.join("p")));
        }
        assert_eq!(look(None, Some(OsStr::new("other:.")), "p"), None);
    }
}
