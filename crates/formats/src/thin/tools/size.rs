//! `udm thin metadata-size`: how large a metadata device a pool wants (`thin_metadata_size`).

/// Letters of units and their names; a small letter is binary, a capital decimal.
const UNITS: &[(char, &str, f64)] = &[
    ('b', "bytes", 1.0),
    ('s', "sectors", 512.0),
    ('k', "kibibytes", KIB),
    ('K', "kilobytes", KB),
    ('m', "mebibytes", KIB * KIB),
    ('M', "megabytes", KB * KB),
    ('g', "gibibytes", KIB * KIB * KIB),
    ('G', "gigabytes", KB * KB * KB),
    ('t', "tebibytes", KIB * KIB * KIB * KIB),
    ('T', "terabytes", KB * KB * KB * KB),
    ('p', "pebibytes", KIB * KIB * KIB * KIB * KIB),
    ('P', "petabytes", KB * KB * KB * KB * KB),
    ('e', "ebibytes", KIB * KIB * KIB * KIB * KIB * KIB),
    ('E', "exabytes", KB * KB * KB * KB * KB * KB),
];
const KIB: f64 = 1024.0;
const KB: f64 = 1000.0;

/// A unit of sizes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Unit(usize);

impl Unit {
    /// What sizes without a unit are in.
    pub const SECTORS: Self = Self(1);

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        UNITS[self.0].1
    }

    /// Its letter.
    #[must_use]
    pub fn letter(self) -> char {
        UNITS[self.0].0
    }
}

impl std::str::FromStr for Unit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is = |(letter, name, _): &(char, &str, f64)| {
            let mut chars = text.chars();
            chars.next() == Some(*letter) && chars.next().is_none() || text.len() > 1 && name.starts_with(text)
        };
        UNITS.iter().position(is).map(Self).ok_or_else(|| {
            let letters: String = UNITS.iter().map(|unit| unit.0).collect();
            format!("{text:?} is no unit; expected one of {letters}, or its name as {}", UNITS[4].1)
        })
    }
}

/// A number with the unit that was written behind it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Size {
    number: u64,
    unit: Option<Unit>,
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number = number.parse().map_err(|_| format!("{text:?}: expected a number with a unit, as 64k"))?;
        let unit = if unit.is_empty() { None } else { Some(unit.parse()?) };
        Ok(Self { number, unit })
    }
}

impl Size {
    /// Sectors, rounded down.
    fn sectors(self) -> f64 {
        (self.number as f64 * UNITS[self.unit.unwrap_or(Unit::SECTORS).0].2 / 512.0).floor()
    }

    /// Without a unit, the number as it is.
    fn count(self) -> f64 {
        self.number as f64 * self.unit.map_or(1.0, |unit| UNITS[unit.0].2)
    }

    fn text(self, default: Option<Unit>) -> String {
        let unit = self.unit.or(default).map_or("", Unit::name);
        format!("{}{unit}", self.number)
    }
}

/// How a result is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A sentence.
    Full,
    /// The number.
    Number,
    /// The number and the unit's letter.
    Short,
    /// The number and the unit's name.
    Long,
}

/// Mappings that a leaf has room for, by this estimate (`thin_metadata_size`).
const MAPPINGS: f64 = ((4096 - 64) / 16) as f64;

/// The line that thin_metadata_size prints: a block for each thin, and twice the leaves that all data blocks take in
/// full ones.
///
/// # Errors
/// When the block size is no power of two or the pool not larger than a block.
pub fn metadata_size(block: Size, pool: Size, thins: Size, unit: Unit, form: Form) -> Result<String, String> {
    let (block_sectors, pool_sectors, count) = (block.sectors(), pool.sectors(), thins.count());
    if block_sectors < 1.0 || pool_sectors < 1.0 || count < 1.0 {
        return Err("block size, pool size and the number of thins have to be more than 0".into());
    }
    if block_sectors >= u64::MAX as f64 || !(block_sectors as u64).is_power_of_two() {
        return Err(format!("the block size is {}, expected a power of two", block.text(Some(Unit::SECTORS))));
    }
    if pool_sectors <= block_sectors {
        return Err("the pool has to be larger than a block".into());
    }
    let leaves = ((2.0 * pool_sectors / block_sectors).floor() / MAPPINGS).floor();
    let result = (1.0 + leaves + count) * 4096.0 / UNITS[unit.0].2;
    let number = match result {
        whole if whole == whole.floor() => format!("{whole:.0}"),
        small if small - small.floor() < 1e-2 => scientific(small),
        broken => format!("{broken:.2}"),
    };
    Ok(match form {
        Form::Number => number,
        Form::Short => format!("{number}{}", unit.letter()),
        Form::Long => format!("{number}{}", unit.name()),
        Form::Full => format!(
            "thin_metadata_size - {number} {} estimated metadata area size for \"--block-size={} --pool-size={} \
             --max-thins={}\"",
            unit.name(),
            block.text(Some(unit_of(block))),
            pool.text(Some(unit_of(pool))),
            thins.text(None)
        ),
    })
}

fn unit_of(size: Size) -> Unit {
    size.unit.unwrap_or(Unit::SECTORS)
}

/// As C's `%.2e`.
fn scientific(number: f64) -> String {
    let text = format!("{number:.2e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_a_letter_or_a_name() {
        for (text, expect) in
            [("m", Some("mebibytes")), ("K", Some("kilobytes")), ("mebi", Some("mebibytes")), ("x", None)]
        {
            assert_eq!(text.parse::<Unit>().ok().map(Unit::name), expect, "{text}");
        }
    }

    #[test]
    fn bad_sizes_are_refused() {
        for (block, pool, thins) in [("3", "1g", "1"), ("64k", "64k", "1"), ("0", "1g", "1"), ("64k", "1g", "0")] {
            let size = |text: &str| text.parse::<Size>().expect("a size");
            let result = metadata_size(size(block), size(pool), size(thins), Unit::SECTORS, Form::Number);
            assert!(result.is_err(), "{block} {pool} {thins}: {result:?}");
        }
        assert!("k".parse::<Size>().is_err() && "12q".parse::<Size>().is_err());
    }
}
