//! The kernel's switch for requests by io_uring, which many tests want on at the same time.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Has the kernel offer requests by io_uring to mounts that are new, where it can and where we may switch it on. With
/// the last one of all processes the switch goes back to what it was.
#[derive(Debug)]
pub struct FuseUring {
    /// Locked by all who want it on, and not empty while it has to go back. `None` where there is nothing to switch.
    switched: Option<File>,
}

impl FuseUring {
    /// Switches it on. May wait for one that switches it off just now.
    #[must_use]
    pub fn offered() -> Self {
        Self { switched: Self::switch_on().ok() }
    }

    fn switch_on() -> std::io::Result<File> {
        let mut switch = File::options().read(true).write(true).open(SWITCH)?;
        let mode = Mode::RUSR | Mode::WUSR;
        let path = std::env::temp_dir().join("udm-test-fuse-uring");
        let mut file =
            File::from(open(path, OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)?);
        flock(&file, FlockOperation::LockShared)?;
        let mut state = [0];
        switch.read_exact(&mut state)?;
        if state == *b"N" {
            file.write_all(b"N")?;
            fs::write(SWITCH, "Y")?;
        }
        Ok(file)
    }

    fn switch_off(file: &mut File) -> std::io::Result<()> {
        // Refused while another one has it: that one, or a later one, does it then.
        flock(&*file, FlockOperation::NonBlockingLockExclusive)?;
        file.rewind()?;
        let mut was = String::new();
        file.read_to_string(&mut was)?;
        if !was.is_empty() {
            fs::write(SWITCH, "N")?;
            file.set_len(0)?;
        }
        Ok(())
    }
}

impl Drop for FuseUring {
    fn drop(&mut self) {
        if let Some(file) = &mut self.switched {
            let _ = Self::switch_off(file);
        }
    }
}
