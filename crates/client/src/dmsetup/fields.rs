//! The fields of a report: their names, headings and widths are dmsetup's (`dmsetup.c`, 1.02.185).

/// The value of a field in a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    String(String),
    /// What it compares by, and what is shown.
    Number(u64, String),
}

impl Value {
    pub(super) fn number(n: impl Into<i64>) -> Self {
        let n = n.into();
        Self::Number(n as u64, n.to_string())
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::String(text) | Self::Number(_, text) => text,
        }
    }
}

/// What a field is about: what has to be asked to fill it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Group {
    Name = 1,
    Info = 2,
    Deps = 4,
    Tree = 8,
    SplitName = 16,
    Special = 32,
}

impl Group {
    /// The groups with fields in [`FIELDS`], in the order of the help text.
    const ALL: [Self; 6] = [Self::Name, Self::Info, Self::Deps, Self::Tree, Self::SplitName, Self::Special];

    pub(super) fn bit(self) -> u32 {
        self as u32
    }

    /// What stands before `all` to mean every field of the group.
    fn prefix(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Info => "info",
            Self::Deps => "deps",
            Self::Tree => "tree",
            Self::SplitName => "splitname",
            Self::Special => "special",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Name => "Mapped device names",
            Self::Info => "Mapped device state",
            Self::Deps => "What a mapped device stands on",
            Self::Tree => "What stands on a mapped device, and names",
            Self::SplitName => "Parts of a mapped device's name",
            Self::Special => "Special fields",
        }
    }
}

/// How a field sorts and compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FieldType {
    String,
    Number,
}

/// Which value a field shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FieldId {
    Name,
    MangledName,
    UnmangledName,
    Uuid,
    MangledUuid,
    UnmangledUuid,
    ReadAhead,
    BlkDevName,
    Attr,
    TablesLoaded,
    Suspended,
    ReadOnly,
    DevNo,
    Major,
    Minor,
    Open,
    Segments,
    Events,
    DeviceCount,
    DevsUsed,
    DevNosUsed,
    BlkDevsUsed,
    DeviceRefCount,
    NamesUsingDev,
    DevNosUsingDev,
    Subsystem,
    VgName,
    LvName,
    LvLayer,
    Selected,
    Help,
}

/// A field.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) id: FieldId,
    pub(super) name: &'static str,
    pub(super) heading: &'static str,
    pub(super) width: usize,
    pub(super) kind: FieldType,
    pub(super) group: Group,
    about: &'static str,
}

macro_rules! fields {
    ($($group:ident $kind:ident $id:ident $name:literal $heading:literal $width:literal $about:literal;)*) => {
        /// Every field.
        pub(super) static FIELDS: &[Field] = &[$(Field {
            id: FieldId::$id,
            name: $name,
            heading: $heading,
            width: $width,
            kind: FieldType::$kind,
            group: Group::$group,
            about: $about,
        },)*];
    };
}

fields! {
    Name String Name "name" "Name" 16 "the name";
    Name String MangledName "mangled_name" "MangledName" 16 "the name with \\xNN for what udev would not have";
    Name String UnmangledName "unmangled_name" "UnmangledName" 16 "the name with \\xNN read back";
    Name String Uuid "uuid" "UUID" 32 "the uuid, where there is one";
    Name String MangledUuid "mangled_uuid" "MangledUUID" 32 "the uuid with \\xNN for what udev would not have";
    Name String UnmangledUuid "unmangled_uuid" "UnmangledUUID" 32 "the uuid with \\xNN read back";
    Name Number ReadAhead "read_ahead" "RAhead" 6 "sectors read ahead";
    Info String BlkDevName "blkdevname" "BlkDevName" 16 "the name as a block device";
    Info String Attr "attr" "Stat" 4 "L: active table, I: inactive table, s: suspended, r or w: read-only or not";
    Info String TablesLoaded "tables_loaded" "Tables" 6 "Live, Inactive, Both or None";
    Info String Suspended "suspended" "Suspended" 9 "Suspended or Active";
    Info String ReadOnly "readonly" "Read-only" 9 "Read-only or Writeable";
    Info String DevNo "devno" "DevNo" 5 "major:minor";
    Info Number Major "major" "Maj" 3 "the major number";
    Info Number Minor "minor" "Min" 3 "the minor number";
    Info Number Open "open" "Open" 4 "how often it is open";
    Info Number Segments "segments" "Targ" 4 "targets in the active table";
    Info Number Events "events" "Event" 6 "the number of the last event";
    Deps Number DeviceCount "device_count" "#Devs" 5 "how many devices it stands on";
    Tree String DevsUsed "devs_used" "DevNamesUsed" 16 "names of the mapped devices it stands on";
    Deps String DevNosUsed "devnos_used" "DevNosUsed" 16 "numbers of the devices it stands on";
    Deps String BlkDevsUsed "blkdevs_used" "BlkDevNamesUsed" 16 "block device names of the devices it stands on";
    Tree Number DeviceRefCount "device_ref_count" "#Refs" 5 "how many mapped devices stand on it";
    Tree String NamesUsingDev "names_using_dev" "RefNames" 8 "names of the mapped devices that stand on it";
    Tree String DevNosUsingDev "devnos_using_dev" "RefDevNos" 9 "numbers of the mapped devices that stand on it";
    SplitName String Subsystem "subsystem" "Subsys" 6 "whose device it is: the uuid up to its first hyphen";
    SplitName String VgName "vg_name" "VG" 4 "LVM's volume group";
    SplitName String LvName "lv_name" "LV" 4 "LVM's logical volume";
    SplitName String LvLayer "lv_layer" "LVLayer" 7 "LVM's layer within the volume";
    Special Number Selected "selected" "Selected" 8 "1 where -S selects the device, 0 where not";
    Special Number Help "help" "Help" 8 "this list";
    Special Number Help "?" "Help" 8 "this list";
}

/// Groups that dmsetup has and udm has not: a report with one of their fields is about regions
/// with statistics, of which there are none.
const STATISTICS: [&str; 2] = ["stats", "region"];

/// A word of `-o`, `-O` or `-S` looked up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    Field(&'static Field),
    /// Every field of these groups.
    All(u32),
    /// Every field that is about statistics.
    Statistics,
}

/// A field by its name: case and underscores do not count.
pub(super) fn field(word: &str) -> Option<&'static Field> {
    let plain = plain(word);
    if plain.is_empty() {
        return None;
    }
    let special = FIELDS.iter().filter(|f| f.group == Group::Special);
    special.chain(FIELDS).find(|f| f.name.replace('_', "").eq_ignore_ascii_case(&plain))
}

/// A field, or `GROUP_all`.
pub(super) fn find(word: &str) -> Option<Found> {
    if let Some(field) = field(word) {
        return Some(Found::Field(field));
    }
    let plain = plain(word);
    let group = plain.strip_suffix("all")?;
    let bits = Group::ALL.iter().filter(|g| **g != Group::Special && g.prefix() == group).map(|g| g.bit());
    match bits.reduce(|a, b| a | b) {
        Some(bits) => Some(Found::All(bits)),
        None => STATISTICS.contains(&group).then_some(Found::Statistics),
    }
}

fn plain(word: &str) -> String {
    word.chars().filter(|&c| c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// The list of all fields; with their types for `-S`.
pub(super) fn help(for_selection: bool) -> String {
    let mut text = String::new();
    for group in Group::ALL {
        text.push_str(group.title());
        text.push_str(":\n");
        if !for_selection && group != Group::Special {
            text.push_str(&format!("  {:<18} all fields of this group\n", format!("{}_all", group.prefix())));
        }
        for field in FIELDS.iter().filter(|f| f.group == group) {
            let kind = match (for_selection, field.kind, field.id) {
                (false, ..) => "",
                (true, _, FieldId::Help) => " (cannot be compared)",
                (true, FieldType::String, _) => " (string)",
                (true, FieldType::Number, _) => " (number)",
            };
            text.push_str(&format!("  {:<18} {}{kind}\n", field.name, field.about));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for word in ["name", "NAME", "n_a_m_e", "devnosused", "devnos_used", "Selected", "?"] {
            assert!(field(word).is_some(), "{word}");
        }
        for word in ["", "_", "nam", "read_count", "name_all"] {
            assert!(field(word).is_none(), "{word}");
        }
        assert!(matches!(find("name_all"), Some(Found::All(1))));
        assert!(matches!(find("SPLITNAMEALL"), Some(Found::All(16))));
        assert!(matches!(find("stats_all"), Some(Found::Statistics)));
        assert!(find("special_all").is_none());
        assert!(find("ball").is_none());
    }

    #[test]
    fn every_field_can_be_found_by_its_name() {
        for f in FIELDS {
            assert_eq!(field(f.name).map(|f| f.id), Some(f.id));
            assert!(help(false).contains(f.about) && help(true).contains(f.name));
        }
    }
}
