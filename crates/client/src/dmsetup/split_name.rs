//! The parts of an LVM device's name: `vg-lv-layer`, a hyphen within a part doubled.

/// The columns of `splitname`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SplitName {
    pub(super) subsystem: String,
    pub(super) vg: String,
    pub(super) lv: String,
    pub(super) layer: String,
}

impl SplitName {
    /// The parts of `name` where `subsystem` is `LVM`; none otherwise.
    pub(super) fn new(subsystem: &str, name: &str) -> Self {
        let mut split = Self { subsystem: subsystem.to_owned(), ..Self::default() };
        if subsystem == "LVM" {
            let mut rest = name;
            for part in [&mut split.vg, &mut split.lv, &mut split.layer] {
                (*part, rest) = component(rest);
            }
        }
        split
    }

    /// The parts of a device's name; its subsystem is what stands before the uuid's first hyphen.
    pub(super) fn of_device(uuid: &str, name: &str) -> Self {
        Self::new(uuid.split_once('-').map_or("", |(subsystem, _)| subsystem), name)
    }
}

/// The first component and what follows its hyphen. A hyphen at the very end is part of the name.
fn component(text: &str) -> (String, &str) {
    let mut part = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c == '-' {
            match chars.peek() {
                Some((_, '-')) => {
                    chars.next();
                }
                Some(_) => return (part, &text[at + 1..]),
                None => {}
            }
        }
        part.push(c);
    }
    (part, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let check = |name: &str, expect: [&str; 3]| {
            let split = SplitName::new("LVM", name);
            assert_eq!([split.vg.as_str(), &split.lv, &split.layer], expect, "{name}");
        };
        check("vg-lv", ["vg", "lv", ""]);
        check("vg-lv-real", ["vg", "lv", "real"]);
        check("a--x-b--y", ["a-x", "b-y", ""]);
        check("vg", ["vg", "", ""]);
        check("vg-", ["vg-", "", ""]);
        check("-lv", ["", "lv", ""]);
        check("a---b", ["a-", "b", ""]);
        check("a-b-c-d", ["a", "b", "c"]);
        check("", ["", "", ""]);
        assert_eq!(SplitName::new("CRYPT", "a-b").vg, "");
        assert_eq!(SplitName::of_device("LVM-abc", "vg-lv").lv, "lv");
        assert_eq!(SplitName::of_device("LVM", "vg-lv"), SplitName::default());
    }
}
