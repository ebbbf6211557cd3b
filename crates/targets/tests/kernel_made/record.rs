//! The lines of a record that say what to do and to expect.

use udm_sim::golden::Record;

/// A line that says something to do or to expect.
pub(crate) enum Line<'a> {
    /// A command, and whether it succeeded.
    Command(Vec<&'a str>, bool),
    /// A volume's size and checksum.
    Volume(&'a str, u64, &'a str),
    /// A device's status.
    Status(&'a str, &'a str),
}

/// The commands, in order.
pub(crate) fn commands(record: &Record) -> impl DoubleEndedIterator<Item = Vec<&str>> + ExactSizeIterator {
    record.lines("+").map(|words| words[1..].to_vec()).collect::<Vec<_>>().into_iter()
}

/// Every line that counts, in order.
pub(crate) fn parsed(record: &Record) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for line in record.text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "+" => lines.push(Line::Command(words[1..].to_vec(), true)),
            "?" => {
                if let Some(Line::Command(_, succeeds)) = lines.last_mut() {
                    *succeeds = false;
                }
            }
            "volume" => lines.push(Line::Volume(words[1], words[2].parse().unwrap(), words[3])),
            "status" => lines.push(Line::Status(words[1], line.splitn(3, ' ').nth(2).unwrap())),
            _ => {}
        }
    }
    lines
}
