//! The options of a device: `udm set`.

use udm_base::Errno;
use udm_core::{Error, MappedDevice};
use udm_io::BlockDevice;

/// An option that can be set.
pub struct DeviceOption {
    /// Its name.
    pub key: &'static str,
    /// The values that it takes.
    pub values: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// `None`: none of the values.
    set: fn(&MappedDevice, &str) -> Option<Result<(), Error>>,
}

/// Every option.
pub static OPTIONS: &[DeviceOption] = &[
    DeviceOption {
        key: "clone_always",
        values: "0 or 1",
        meaning: "clone every bio, never pass the submitter's own down",
        set: |md, value| switch(value).map(|on| md.set_clone_always(on)).map(Ok),
    },
    DeviceOption {
        key: "compile",
        values: "0 or 1",
        meaning: "lead bios through a stack in one step where its targets allow it",
        set: |md, value| switch(value).map(|on| md.set_compile(on)).map(Ok),
    },
    DeviceOption {
        key: "io_poll",
        values: "0 or 1",
        meaning: "whether bios may be polled for, where every device beneath can be polled",
        set: |md, value| switch(value).map(|on| md.set_io_poll(on)),
    },
    DeviceOption {
        key: "no_space_timeout",
        values: "a number of seconds, 0 for ever, and a device with a thin-pool",
        meaning: "how long writes to a thin-pool without space wait for some; 60 unless set",
        set: |md, value| md.set_target_option("no_space_timeout", value).map(Ok),
    },
    DeviceOption {
        key: "poll_budget",
        values: "a number of microseconds, or auto",
        meaning: "how long the daemon polls for the device's bios before it sleeps; auto: as the daemon's --poll-budget",
        set: |md, value| {
            md.set_poll_budget(if value == "auto" { None } else { Some(value.parse().ok()?) });
            Some(Ok(()))
        },
    },
    DeviceOption {
        key: "poll_queues",
        values: "0 to 1024, and a device over null: devices or files that can be polled",
        meaning: "how many queues that are polled the devices beneath use",
        set: |md, value| {
            let n = value.parse().ok().filter(|n| *n <= 1024)?;
            md.set_poll_queues(n).then_some(Ok(()))
        },
    },
    DeviceOption {
        key: "read_ahead",
        values: "a number of sectors, or auto",
        meaning: "what dmsetup shows as read ahead; udm itself never reads ahead",
        set: |md, value| {
            let sectors = if value == "auto" { None } else { Some(value.parse().ok()?) };
            md.set_read_ahead(sectors);
            Some(Ok(()))
        },
    },
];

/// Changes an option of a device.
///
/// # Errors
/// EINVAL: no such option, or not one of its values.
pub fn set_option(md: &MappedDevice, key: &str, value: &str) -> Result<(), Error> {
    let Some(option) = OPTIONS.iter().find(|o| o.key == key) else {
        let known: Vec<_> = OPTIONS.iter().map(|o| o.key).collect();
        let message = format!("no option is called {key:?}: known are {}", known.join(", "));
        return Err(Error::new(Errno::EINVAL, message));
    };
    let expected = || Error::new(Errno::EINVAL, format!("{key}={value}: expected {}", option.values));
    (option.set)(md, value).unwrap_or_else(|| Err(expected()))
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
