//! The options of dmsetup, of all its commands together.

use super::getopt::{self, LongOption};
use super::mangle::Mangling;

/// An option's name in this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    AddNodeOnCreate,
    AddNodeOnResume,
    Checks,
    Columns,
    Concise,
    Count,
    Deferred,
    Exec,
    Force,
    Gid,
    Help,
    Inactive,
    Interval,
    Json,
    Major,
    MangleName,
    Minor,
    Mode,
    NamePrefixes,
    NoFlush,
    NoHeadings,
    NoLockfs,
    NoOpenCount,
    NoTable,
    Options,
    ReadAhead,
    ReadOnly,
    Retry,
    Rows,
    Select,
    Separator,
    SetUuid,
    ShowKeys,
    Sort,
    Table,
    Target,
    Tree,
    UdevCookie,
    Uid,
    Units,
    Unquoted,
    Uuid,
    Verbose,
    Version,
    Yes,
    /// Taken and without effect: it concerns udev, or statistics.
    Ignored,
}

const fn flag(name: &'static str, key: Key) -> LongOption<Key> {
    LongOption { name, has_value: false, key }
}

const fn value(name: &'static str, key: Key) -> LongOption<Key> {
    LongOption { name, has_value: true, key }
}

/// The options of dmsetup 1.02.185, those of its statistics among them because a shortened option
/// has to be unique among all, and `--json`, which is ours.
static LONG: &[LongOption<Key>] = &[
    flag("readonly", Key::ReadOnly),
    value("alias", Key::Ignored),
    flag("alldevices", Key::Ignored),
    flag("allprograms", Key::Ignored),
    flag("allregions", Key::Ignored),
    flag("area", Key::Ignored),
    value("areas", Key::Ignored),
    value("areasize", Key::Ignored),
    value("bounds", Key::Ignored),
    flag("checks", Key::Checks),
    flag("clear", Key::Ignored),
    flag("columns", Key::Columns),
    flag("concise", Key::Concise),
    value("count", Key::Count),
    flag("deferred", Key::Deferred),
    value("select", Key::Select),
    value("exec", Key::Exec),
    flag("filemap", Key::Ignored),
    value("follow", Key::Ignored),
    flag("force", Key::Force),
    flag("foreground", Key::Ignored),
    value("gid", Key::Gid),
    flag("group", Key::Ignored),
    value("groupid", Key::Ignored),
    flag("help", Key::Help),
    flag("histogram", Key::Ignored),
    flag("inactive", Key::Inactive),
    value("interval", Key::Interval),
    flag("json", Key::Json),
    value("length", Key::Ignored),
    value("manglename", Key::MangleName),
    value("major", Key::Major),
    value("minor", Key::Minor),
    value("mode", Key::Mode),
    flag("nameprefixes", Key::NamePrefixes),
    flag("nogroup", Key::Ignored),
    flag("noflush", Key::NoFlush),
    flag("noheadings", Key::NoHeadings),
    flag("nolockfs", Key::NoLockfs),
    flag("noopencount", Key::NoOpenCount),
    flag("nosuffix", Key::Ignored),
    flag("notable", Key::NoTable),
    flag("notimesuffix", Key::Ignored),
    value("udevcookie", Key::UdevCookie),
    flag("nomonitor", Key::Ignored),
    flag("noudevrules", Key::Ignored),
    flag("noudevsync", Key::Ignored),
    value("options", Key::Options),
    flag("precise", Key::Ignored),
    value("programid", Key::Ignored),
    flag("raw", Key::Ignored),
    value("readahead", Key::ReadAhead),
    flag("region", Key::Ignored),
    value("regions", Key::Ignored),
    value("regionid", Key::Ignored),
    flag("relative", Key::Ignored),
    flag("retry", Key::Retry),
    flag("rows", Key::Rows),
    flag("segments", Key::Ignored),
    value("separator", Key::Separator),
    flag("setuuid", Key::SetUuid),
    flag("showkeys", Key::ShowKeys),
    value("sort", Key::Sort),
    value("start", Key::Ignored),
    value("table", Key::Table),
    value("target", Key::Target),
    flag("tree", Key::Tree),
    value("uid", Key::Uid),
    value("units", Key::Units),
    value("uuid", Key::Uuid),
    flag("unbuffered", Key::Ignored),
    flag("unquoted", Key::Unquoted),
    value("userdata", Key::Ignored),
    // With a value, as in dmsetup, whose manual says otherwise.
    value("verbose", Key::Verbose),
    flag("verifyudev", Key::Ignored),
    flag("version", Key::Version),
    flag("yes", Key::Yes),
    flag("addnodeonresume", Key::AddNodeOnResume),
    flag("addnodeoncreate", Key::AddNodeOnCreate),
];

fn short(letter: char) -> Option<(Key, bool)> {
    Some(match letter {
        'c' | 'C' => (Key::Columns, false),
        'f' => (Key::Force, false),
        'G' => (Key::Gid, true),
        'h' => (Key::Help, false),
        'j' => (Key::Major, true),
        'm' => (Key::Minor, true),
        'M' => (Key::Mode, true),
        'n' => (Key::NoTable, false),
        'o' => (Key::Options, true),
        'O' => (Key::Sort, true),
        'r' => (Key::ReadOnly, false),
        'S' => (Key::Select, true),
        'u' => (Key::Uuid, true),
        'U' => (Key::Uid, true),
        'v' => (Key::Verbose, false),
        'y' => (Key::Yes, false),
        _ => return None,
    })
}

/// `--readahead`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum ReadAhead {
    /// As the device has it.
    #[default]
    Auto,
    /// Sectors.
    Exactly(u32),
    /// Sectors, unless the device has more.
    AtLeast(u32),
}

impl ReadAhead {
    fn parse(text: &str) -> Result<Self, String> {
        let n = match text.to_ascii_lowercase().as_str() {
            "auto" => -1,
            "none" => 0,
            _ => atoi(text),
        };
        match u32::try_from(n) {
            Ok(sectors) if text.trim_start_matches(super::table_text::is_space).starts_with('+') => {
                Ok(Self::AtLeast(sectors))
            }
            Ok(sectors) => Ok(Self::Exactly(sectors)),
            Err(_) if n == -1 => Ok(Self::Auto),
            Err(_) => Err(format!("--readahead is {text}: expected auto, none, or sectors, 0 or more")),
        }
    }
}

/// The options as given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Options {
    pub(super) checks: bool,
    pub(super) columns: bool,
    pub(super) concise: bool,
    pub(super) count: Option<i32>,
    pub(super) deferred: bool,
    pub(super) exec: Option<String>,
    pub(super) force: bool,
    pub(super) help: bool,
    pub(super) inactive: bool,
    pub(super) interval: Option<i32>,
    pub(super) json: bool,
    /// Major and minor go together.
    pub(super) major: Option<i32>,
    pub(super) minor: Option<i32>,
    pub(super) mangling: Option<Mangling>,
    pub(super) name_prefixes: bool,
    pub(super) no_flush: bool,
    pub(super) no_headings: bool,
    pub(super) no_lockfs: bool,
    pub(super) no_open_count: bool,
    pub(super) no_table: bool,
    pub(super) options: Option<String>,
    pub(super) read_ahead: ReadAhead,
    pub(super) read_only: bool,
    pub(super) retry: bool,
    pub(super) rows: bool,
    pub(super) select: Option<String>,
    pub(super) separator: Option<String>,
    pub(super) set_uuid: bool,
    pub(super) show_keys: bool,
    pub(super) sort: Option<String>,
    pub(super) table: Option<String>,
    pub(super) target: Option<String>,
    pub(super) tree: bool,
    pub(super) udev_cookie: Option<String>,
    pub(super) unquoted: bool,
    pub(super) uuid: Option<String>,
    pub(super) verbose: u32,
    pub(super) version: bool,
    pub(super) yes: bool,
}

impl Options {
    /// Parse an argument vector without the program's name: the options, and the command with its
    /// arguments.
    pub(super) fn parse(args: &[String], posix: bool) -> Result<(Self, Vec<String>), String> {
        let parsed = getopt::parse(args, LONG, short, posix)?;
        let mut o = Self::default();
        let (mut on_create, mut on_resume) = (false, false);
        for met in parsed.options {
            let value = met.value;
            match met.key {
                Key::AddNodeOnCreate => on_create = true,
                Key::AddNodeOnResume => on_resume = true,
                Key::Checks => o.checks = true,
                Key::Columns => o.columns = true,
                Key::Concise => o.concise = true,
                Key::Count => {
                    o.count = Some(atoi(&value));
                    if atoi(&value) < 0 {
                        return Err(format!("--count is {value}: expected 0 (for ever) or more"));
                    }
                }
                Key::Deferred => o.deferred = true,
                Key::Exec => o.exec = Some(value),
                Key::Force => o.force = true,
                Key::Help => o.help = true,
                Key::Inactive => o.inactive = true,
                Key::Interval => {
                    o.interval = Some(atoi(&value));
                    if atoi(&value) <= 0 {
                        return Err(format!("--interval is {value:?}: expected 1 or more seconds"));
                    }
                }
                Key::Json => o.json = true,
                Key::Major => o.major = Some(atoi(&value)),
                Key::MangleName => {
                    o.mangling = Some(
                        Mangling::parse(&value)
                            .ok_or_else(|| format!("--manglename is {value:?}: expected none, auto or hex"))?,
                    );
                }
                Key::Minor => o.minor = Some(atoi(&value)),
                Key::Mode => {
                    if !matches!(i32::from_str_radix(value.trim_start(), 8), Ok(1..)) {
                        return Err(format!("--mode is {value:?}: expected an octal number, as in 0660"));
                    }
                }
                Key::NamePrefixes => o.name_prefixes = true,
                Key::NoFlush => o.no_flush = true,
                Key::NoHeadings => o.no_headings = true,
                Key::NoLockfs => o.no_lockfs = true,
                Key::NoOpenCount => o.no_open_count = true,
                Key::NoTable => o.no_table = true,
                Key::Options => o.options = Some(value),
                Key::ReadAhead => o.read_ahead = ReadAhead::parse(&value)?,
                Key::ReadOnly => o.read_only = true,
                Key::Retry => o.retry = true,
                Key::Rows => o.rows = true,
                Key::Select => o.select = Some(value),
                Key::Separator => o.separator = Some(value),
                Key::SetUuid => o.set_uuid = true,
                Key::ShowKeys => o.show_keys = true,
                Key::Sort => o.sort = Some(value),
                Key::Table => o.table = Some(value),
                Key::Target => o.target = Some(value),
                Key::Tree => o.tree = true,
                Key::UdevCookie => o.udev_cookie = Some(value),
                Key::Unquoted => o.unquoted = true,
                Key::Uuid => o.uuid = Some(value),
                Key::Verbose => o.verbose += 1,
                Key::Version => o.version = true,
                Key::Yes => o.yes = true,
                Key::Gid | Key::Uid | Key::Units | Key::Ignored => {}
            }
        }
        if o.major.is_some() != o.minor.is_some() {
            return Err("a device's number needs both --major and --minor".into());
        }
        if o.table.is_some() && o.no_table {
            return Err("--table and --notable exclude each other".into());
        }
        if on_create && on_resume {
            return Err("--addnodeonresume and --addnodeoncreate exclude each other".into());
        }
        Ok((o, parsed.arguments))
    }
}

/// As C's `atoi`: white space, a sign, digits, and nothing else is looked at.
pub(super) fn atoi(text: &str) -> i32 {
    let text = text.trim_start_matches(super::table_text::is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let n = digits[..end].parse::<i64>().unwrap_or(if end == 0 { 0 } else { i64::MAX });
    (if negative { n.wrapping_neg() } else { n }) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(Options, Vec<String>), String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&args, false)
    }

    #[test]
    fn numbers() {
        for (text, n) in [("12", 12), (" -3x", -3), ("+4", 4), ("", 0), ("x", 0), ("99999999999999999999", -1)] {
            assert_eq!(atoi(text), n, "{text:?}");
        }
    }

    #[test]
    fn accepted() {
        let (options, rest) = parse("info -c -j253 -m -3 a --manglename HEX --verbose 1 -v --readahead +64").unwrap();
        assert_eq!(rest, ["info", "a"]);
        assert_eq!((options.major, options.minor, options.verbose), (Some(253), Some(-3), 2));
        assert_eq!(options.mangling, Some(Mangling::Hex));
        assert!(options.columns);
        assert_eq!(options.read_ahead, ReadAhead::AtLeast(64));
        for (text, expect) in [("auto", ReadAhead::Auto), ("NONE", ReadAhead::Exactly(0)), ("8", ReadAhead::Exactly(8))]
        {
            assert_eq!(parse(&format!("resume a --readahead {text}")).unwrap().0.read_ahead, expect);
        }
    }

    #[test]
    fn refused() {
        let check = |line: &str, expect: &str| {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expect), "{line}: {error}");
        };
        check("info -j 253", "both --major and --minor");
        check("create -n --table x", "exclude each other");
        check("create --addnodeonresume --addnodeoncreate", "exclude each other");
        check("info --count -1", "--count is -1");
        check("info --interval 0", "--interval is \"0\"");
        check("ls --manglename wrong", "none, auto or hex");
        check("create --mode 9", "octal");
        check("create --mode 0", "octal");
        check("create --readahead -2", "--readahead is -2");
        check("info --no a", "ambiguous: --nogroup, --noflush");
    }
}
