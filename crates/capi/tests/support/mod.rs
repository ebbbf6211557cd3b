//! The library as it is built here.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Where the library lies: the folder that this test was built in. Not every way to build the tests builds it too.
pub(crate) fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let exe = std::env::current_exe().expect("a test has a path");
        let profile = exe.ancestors().nth(2).expect("it lies in PROFILE/deps").to_owned();
        if std::env::var_os("UDM_ALL_BUILT").is_some() {
            return profile;
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let target = profile.parent().expect("the target folder");
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--offline", "--package", "udm-capi", "--target-dir"]).arg(target);
        let name = profile.file_name().and_then(|name| name.to_str()).expect("a profile's name");
        command.args(["--profile", if name == "debug" { "dev" } else { name }]);
        let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs its tests");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        profile
    };
    BUILT.get_or_init(build).clone()
}
