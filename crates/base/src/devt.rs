//! Device numbers.

use std::fmt;
use std::str::FromStr;

/// A device number, major and minor, as `M:m` in tables and outputs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DevT {
    /// The driver.
    pub major: u32,
    /// The device of that driver.
    pub minor: u32,
}

impl DevT {
    /// The device number `major:minor`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The 64-bit form of `dm_ioctl.dev` (`huge_encode_dev`, `include/linux/kdev_t.h`, 6.12).
    pub const fn to_huge(self) -> u64 {
        let (major, minor) = (self.major as u64, self.minor as u64);
        (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
    }

    /// The inverse of [`to_huge`](Self::to_huge) (`huge_decode_dev`).
    pub const fn from_huge(dev: u64) -> Self {
        let major = (dev & 0xf_ff00) >> 8;
        let minor = (dev & 0xff) | ((dev >> 12) & 0xf_ff00);
        Self { major: major as u32, minor: minor as u32 }
    }
}

impl fmt::Display for DevT {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// The text is not `M:m` with two decimal numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a device number: expected MAJOR:MINOR, as 7:0")]
pub struct ParseDevTError;

impl FromStr for DevT {
    type Err = ParseDevTError;
    fn from_str(s: &str) -> Result<Self, ParseDevTError> {
        let number = |s: &str| {
            if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
                return Err(ParseDevTError);
            }
            s.parse::<u32>().map_err(|_| ParseDevTError)
        };
        let (major, minor) = s.split_once(':').ok_or(ParseDevTError)?;
        Ok(Self::new(number(major)?, number(minor)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        assert_eq!("7:0".parse(), Ok(DevT::new(7, 0)));
        for bad in ["", ":", "7", "7:", ":0", "a:b", "7:0:1", "+7:0", "7:-1", "99999999999:0", " 7:0"] {
            assert_eq!(bad.parse::<DevT>(), Err(ParseDevTError), "{bad}");
        }
    }

    #[test]
    fn huge_form() {
        assert_eq!(DevT::new(253, 5).to_huge(), 0xfd05);
        for d in [DevT::new(0, 0), DevT::new(253, 255), DevT::new(4000, 256), DevT::new(1, 0xf_ffff)] {
            assert_eq!(DevT::from_huge(d.to_huge()), d);
        }
    }
}
