//! How long a rotating disk takes: arithmetic, nothing else.

use std::fmt;
use udm_base::{SECTOR_SIZE, Sector, Sectors};

/// A disk with one head, whose tracks lie one after the other and all have as many sectors.
///
/// A request takes the sum of four times:
/// - *command*: `command_ns`, unless it goes on where the last one ended;
/// - *seek*: none on the same track, else
///   `seek_min_ns + (seek_full_ns - seek_min_ns) · √(tracks crossed / all tracks)`;
/// - *rotation*: until the first sector comes round under the head. The platter never stops: where it stands is the
///   time, modulo a revolution;
/// - *transfer*: `sector_ns` a sector. Tracks are skewed by `skew` sectors, so that the head, on its way from the end
///   of one to the start of the next, loses just these.
///
/// A request that was queued in time and lies where the last one ended begins at once: streams are not held up. Left
/// out are the disk's cache and zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskModel {
    /// Sectors of a track.
    pub track: u64,
    /// How long a sector is under the head, in nanoseconds.
    pub sector_ns: u64,
    /// By how many sectors a track begins later than the one before. Long enough to change tracks in.
    pub skew: u64,
    /// To the next track.
    pub seek_min_ns: u64,
    /// From the first track to the last.
    pub seek_full_ns: u64,
    /// Tracks.
    pub tracks: u64,
    /// What a request costs before the head moves: the command, and the interrupt of the one before. A disk of the time
    /// took one command after the other.
    pub command_ns: u64,
}

/// Where the head is: over the track of this sector, after the sector before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head(pub Sector);

/// What a request cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Service {
    /// Whether the head had to go elsewhere, on the same track or on another.
    pub moved: bool,
    /// Tracks crossed.
    pub crossed: u64,
    /// The command.
    pub command_ns: u64,
    /// To get to the track.
    pub seek_ns: u64,
    /// Until the first sector came round.
    pub rotation_ns: u64,
    /// From the first sector to the last.
    pub transfer_ns: u64,
}

impl Service {
    /// All of it.
    pub fn ns(&self) -> u64 {
        self.command_ns + self.seek_ns + self.rotation_ns + self.transfer_ns
    }
}

impl DiskModel {
    /// A disk of a desktop of 2007, as in the measurements that this is compared with: 7200 revolutions a minute, 70
    /// MB/s along the tracks, 8.3 ms for an average seek, 0.3 ms for a command. `size` is rounded up to whole tracks.
    pub fn desktop(size: Sectors) -> Self {
        let track = 1250;
        let tracks = size.get().div_ceil(track).max(1);
        Self {
            track,
            sector_ns: 6667,
            skew: 120,
            seek_min_ns: 700_000,
            seek_full_ns: 15_000_000,
            tracks,
            command_ns: 300_000,
        }
    }

    /// A revolution, in nanoseconds.
    pub fn revolution_ns(&self) -> u64 {
        self.track * self.sector_ns
    }

    /// How fast it is from one track to the next, at best, in bytes a second.
    pub fn bytes_per_second(&self) -> f64 {
        (self.track as usize * SECTOR_SIZE) as f64 * 1e9 / ((self.track + self.skew) * self.sector_ns) as f64
    }

    /// The time to get over `crossed` tracks.
    pub fn seek_ns(&self, crossed: u64) -> u64 {
        if crossed == 0 {
            return 0;
        }
        // The root of the share, in 2^-16: whole numbers, so that it is the same on every machine.
        let share = u128::from(crossed.min(self.tracks)) << 32;
        let root = (share / u128::from(self.tracks)).isqrt() as u64;
        self.seek_min_ns + (((self.seek_full_ns - self.seek_min_ns) * root) >> 16)
    }

    /// What a request costs that begins at `now`, and where it leaves the head. Not empty.
    pub fn service(&self, head: Head, now: u64, sector: Sector, sectors: Sectors) -> (Service, Head) {
        let (from, to) = (head.0.get() / self.track, sector.get() / self.track);
        let end = sector + sectors;
        let last = end.get().saturating_sub(1) / self.track;
        let transfer_ns = sectors.get() * self.sector_ns + (last - to) * self.skew * self.sector_ns;
        let crossed = from.abs_diff(to);
        // Going on at the start of the next track is what the skew is for, and no seek.
        let goes_on = head.0 == sector;
        let seek_ns = if goes_on { 0 } else { self.seek_ns(crossed) };
        let command_ns = if goes_on { 0 } else { self.command_ns };
        let phase = (now + command_ns + seek_ns) % self.revolution_ns();
        let rotation_ns = (self.angle_ns(sector) + self.revolution_ns() - phase) % self.revolution_ns();
        let moved = !goes_on;
        (Service { moved, crossed, command_ns, seek_ns, rotation_ns, transfer_ns }, Head(end))
    }

    /// When in a revolution a sector comes under the head.
    fn angle_ns(&self, sector: Sector) -> u64 {
        let (track, within) = (sector.get() / self.track, sector.get() % self.track);
        (within + track % self.track * self.skew) % self.track * self.sector_ns
    }
}

impl fmt::Display for DiskModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} rpm, {} tracks of {} sectors with a skew of {}, {:.1} MB/s along them, seeks {} to {} µs by the root of the \
             distance, {} µs a command, no cache",
            60e9 / self.revolution_ns() as f64,
            self.tracks,
            self.track,
            self.skew,
            self.bytes_per_second() / 1e6,
            self.seek_min_ns / 1000,
            self.seek_full_ns / 1000,
            self.command_ns / 1000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten sectors a track of 100 ns each, skewed by 3.
    const SMALL: DiskModel = DiskModel {
        track: 10,
        sector_ns: 100,
        skew: 3,
        seek_min_ns: 150,
        seek_full_ns: 1150,
        tracks: 100,
        command_ns: 20,
    };

    fn check(head: u64, now: u64, sector: u64, sectors: u64, expect: (u64, u64, u64)) {
        let (service, end) = SMALL.service(Head(Sector::new(head)), now, Sector::new(sector), Sectors::new(sectors));
        assert_eq!(
            (service.seek_ns, service.rotation_ns, service.transfer_ns),
            expect,
            "{head} {now} {sector}+{sectors}"
        );
        assert_eq!(end.0.get(), sector + sectors);
    }

    #[test]
    fn times() {
        // Where the head is, when its sector comes.
        check(0, 0, 0, 1, (0, 0, 100));
        check(0, 0, 4, 2, (0, 380, 200));
        // A little too late: a revolution less that.
        check(4, 401, 4, 1, (0, 999, 100));
        check(3, 381, 4, 1, (0, 999, 100));
        // Over the end of a track: three sectors more.
        check(0, 0, 0, 10, (0, 0, 1000));
        check(0, 0, 0, 11, (0, 0, 1400));
        check(0, 0, 5, 25, (0, 480, 2500 + 600));
        // To the next track, where the first sector is at 300: there in time.
        check(5, 500, 10, 1, (249, 531, 100));
        // 25 tracks of 100: half of the way from least to most.
        check(0, 0, 250, 1, (650, 830, 100));
        check(0, 0, 999, 1, (1144, 436, 100));
    }

    #[test]
    fn a_stream_never_waits() {
        // Read in requests of any length, each begun when the one before has ended, it takes the same time as in one.
        let (whole, _) = SMALL.service(Head::default(), 0, Sector::ZERO, Sectors::new(300));
        let (mut head, mut now, mut at, mut moved) = (Head::default(), 0, 0, 0);
        for len in [1, 7, 2, 20, 10, 30, 3, 100, 127] {
            let (service, next) = SMALL.service(head, now, Sector::new(at), Sectors::new(len));
            assert!(service.rotation_ns == 0 || service.rotation_ns == 300, "{service:?} at {at}");
            (now, head, at, moved) = (now + service.ns(), next, at + len, moved + u32::from(service.moved));
        }
        assert_eq!((now, moved), (whole.ns(), 0));
    }

    #[test]
    fn the_desktop_disk() {
        let disk = DiskModel::desktop(Sectors::in_bytes(100 << 30));
        assert_eq!(disk.revolution_ns(), 8_333_750);
        assert!((70e6..71e6).contains(&disk.bytes_per_second()));
        assert_eq!(disk.seek_ns(disk.tracks), 15_000_000);
        let pairs = (0..100u64).flat_map(|from| (0..100u64).map(move |to| from.abs_diff(to)));
        let mean = pairs.map(|share| disk.seek_ns(disk.tracks * share / 100)).sum::<u64>() / 10_000;
        assert!((8_100_000..8_500_000).contains(&mean), "{mean}");
        assert!(disk.skew * disk.sector_ns >= disk.seek_ns(1), "the next track is reached within the skew");
        assert!(disk.to_string().starts_with("7200 rpm, 167773 tracks"), "{disk}");
    }
}
