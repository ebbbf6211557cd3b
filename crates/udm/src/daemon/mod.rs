//! The daemon: the devices of one user, and the sockets to reach them.
//!
//! # How it starts
//! It takes the lock of its directory, so that it is the only one there; sockets that it finds are then left from a
//! killed daemon. It makes the devices of the previous daemon again. `control.sock` comes last: a client that can
//! connect to it can use everything.
//!
//! # How it ends
//! On SIGTERM, SIGINT, SIGHUP, a client's request, or when its directory has been deleted: it takes no more requests,
//! lets those under way finish, flushes the devices, and removes its sockets. Nothing else on disk is removed: the next
//! daemon has the same devices.

mod beneath;
mod clients;
mod commands;
mod control;
mod conversation;
pub(crate) mod cut;
mod devices;
mod flush;
mod handover;
mod late;
mod life;
mod lock;
mod log;
mod lost;
mod nbd;
mod nodes;
mod own_writes;
mod replacement;
mod resources;
mod resting;
mod restore;
mod second;
mod secret;
mod servers;
mod socket;
mod start;
mod state;
mod stop;
mod successor;
mod tcp;
mod vhost;
mod watchdog;

pub(crate) use flush::flush_all;
pub(crate) use lock::Lock;
pub(crate) use log::{open as open_log, tail as log_tail};
pub(crate) use start::{Begin, EXIT_HELD, EXIT_NONE, forget, replace, run};
pub(crate) use state::{LOG, STATE};
pub(crate) use stop::Stop;
pub(crate) use tcp::{parse_address, tcp_uri};

use crate::places::Places;
use devices::Devices;
use replacement::Replacement;
use std::sync::Arc;
use stop::Ending;
use udm_control::second::UnderwayList;

/// The state shared by the daemon's threads.
pub(crate) struct Daemon {
    places: Places,
    devices: Devices,
    underway: UnderwayList,
    ending: Arc<Ending>,
    replacement: Replacement,
}

impl Daemon {
    /// Serves nobody yet, and nothing is under way.
    fn new(places: &Places, devices: Devices, ending: Arc<Ending>) -> Self {
        let underway = UnderwayList::new(devices.registry.domain().clock().clone());
        Self { places: places.clone(), devices, underway, ending, replacement: Replacement::default() }
    }
}
