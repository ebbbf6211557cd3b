//! What a table can name is opened, and what cannot be opened says why.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;
use udm_base::Sectors;
use udm_files::OpenErrorKind;
use udm_io::{DeviceId, Domain};
use udm_stack::{OpenOptions, open_beneath};

#[test]
fn names_and_identities() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("a b,c;d\\e");
    fs::write(&path, vec![0; 4096]).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let mut options = OpenOptions::new(&Domain::default());
    options.cwd = dir.path().to_path_buf();
    let (dev, by_link) = (open_beneath("a b,c;d\\e", &options).unwrap(), open_beneath("./link", &options).unwrap());
    let canonical = path.canonicalize().unwrap();
    let escaped = canonical.to_str().unwrap().replace('\\', "\\\\").replace(' ', "\\ ");
    assert_eq!(dev.name(), escaped.replace(',', "\\,").replace(';', "\\;"));
    assert_eq!((by_link.name(), by_link.id()), (dev.name(), dev.id()));
    let m = fs::metadata(&path).unwrap();
    assert_eq!(dev.id(), DeviceId::File(m.dev(), m.ino()));
    let again = udm_base::Args::parse(&dev.name()).take().unwrap().text;
    assert_eq!(open_beneath(&again, &options).unwrap().id(), dev.id());
}

#[test]
fn what_cannot_be_opened_says_why() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut options = OpenOptions::new(&Domain::default());
    options.cwd = dir.path().to_path_buf();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("fifo"), 0o600.into()).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
    use OpenErrorKind as K;
    for (spec, kind, errno, part) in [
        (".", K::WrongKind, "ENOTBLK", "is a directory; expected a regular file or a block device"),
        ("fifo", K::WrongKind, "ENOTBLK", "is a FIFO"),
        ("socket", K::WrongKind, "ENOTBLK", "is a socket"),
        ("/dev/null", K::WrongKind, "ENOTBLK", "is a character device"),
        ("missing", K::NotFound, "ENOENT", "No such file"),
        ("fifo/x", K::NotFound, "ENOTDIR", "Not a directory"),
        ("loop", K::System, "ELOOP", "Too many levels"),
        ("", K::Spec, "EINVAL", "expected a path or a URI"),
        ("ftp://host/disk", K::Spec, "EINVAL", "scheme \"ftp\""),
        ("nbd://host:x/", K::Spec, "EINVAL", "port expected"),
        ("nbd+unix:///a?socket=/missing/socket", K::NotFound, "ENOENT", "cannot be connected to: No such file"),
        ("null:size=1X", K::Spec, "EINVAL", "expected size as"),
        ("4095:1048575", K::NotFound, "ENOENT", "no block device of this machine"),
    ] {
        let error = open_beneath(spec, &options).err().unwrap_or_else(|| panic!("{spec} was opened"));
        assert_eq!((error.kind(), error.errno().name()), (kind, Some(errno)), "{spec}: {error}");
        assert!(error.to_string().contains(part), "{spec}: {error}");
        assert!(error.to_string().contains(&format!("{:?}", error_name(spec, dir.path()))), "{spec}: {error}");
    }
    assert_eq!(open_beneath("null:size=4K", &options).unwrap().sectors(), Sectors::new(8));
}

/// How an error names a spec: paths with their folder.
fn error_name(spec: &str, dir: &Path) -> String {
    let verbatim = spec.is_empty() || spec.contains(':');
    if verbatim { spec.into() } else { dir.join(spec).to_str().unwrap().into() }
}

#[test]
fn a_block_device_of_the_host_is_found_by_its_number() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("disk");
    fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let losetup = |args: &[&str]| std::process::Command::new("losetup").args(args).output();
    let node = losetup(&["--find", "--show", path.to_str().unwrap()]);
    let Some(node) = node.ok().filter(|out| out.status.success()) else {
        println!("SKIP a loop device cannot be set up here");
        return;
    };
    let node = String::from_utf8(node.stdout).unwrap();
    let options = OpenOptions::new(&Domain::default());
    let by_name = open_beneath(node.trim(), &options);
    let by_number = by_name.as_ref().ok().map(|dev| {
        let DeviceId::Number(number) = dev.id() else { panic!("{:?}", dev.id()) };
        (number, open_beneath(&number.to_string(), &options))
    });
    // Whatever was found: the loop device must go.
    losetup(&["-d", node.trim()]).unwrap();
    let (number, by_number) = by_number.expect("opened by its path");
    assert_eq!(number.major, 7);
    let by_number = by_number.unwrap();
    assert_eq!((by_number.id(), by_number.sectors()), (DeviceId::Number(number), Sectors::new(8192)));
}
