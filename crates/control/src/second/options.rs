//! The options of a device: `udm set`.

use udm_base::Errno;
use udm_core::{Error, MappedDevice};

/// An option that can be set.
pub struct DeviceOption {
    /// Its name.
    pub key: &'static str,
    /// The values that it takes.
    pub values: &'static str,
    /// What it does.
    pub meaning: &'static str,
    set: fn(&MappedDevice, &str) -> Option<()>,
}

/// Every option.
pub static OPTIONS: &[DeviceOption] = &[
    DeviceOption {
        key: "clone_always",
        values: "0 or 1",
        meaning: "clone every bio, never pass the submitter's own down",
        set: |md, value| switch(value).map(|on| md.set_clone_always(on)),
    },
    DeviceOption {
        key: "compile",
        values: "0 or 1",
        meaning: "lead bios through a stack in one step where its targets allow it",
        set: |md, value| switch(value).map(|on| md.set_compile(on)),
    },
    DeviceOption {
        key: "no_space_timeout",
        values: "a number of seconds, 0 for ever, and a device with a thin-pool",
        meaning: "how long writes to a thin-pool without space wait for some; 60 unless set",
        set: |md, value| md.set_target_option("no_space_timeout", value),
    },
    DeviceOption {
        key: "read_ahead",
        values: "a number of sectors, or auto",
        meaning: "what dmsetup shows as read ahead; udm itself never reads ahead",
        set: |md, value| {
            let sectors = if value == "auto" { None } else { Some(value.parse().ok()?) };
            md.set_read_ahead(sectors);
            Some(())
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
    (option.set)(md, value)
        .ok_or_else(|| Error::new(Errno::EINVAL, format!("{key}={value}: expected {}", option.values)))
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
