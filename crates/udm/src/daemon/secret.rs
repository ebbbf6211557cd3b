//! Tables that were loaded with DM_SECURE_DATA: there may be a key in one.
//!
//! What such a table says is in no file and in no log. On disk there is its shape: where its targets begin and end, and
//! what they are. So the daemon that follows a kill makes an error table of the same size, and says why; one that
//! follows by `--replace` is told everything, from memory to memory. Who has the device is shown its table, as by the
//! kernel.
//!
//! A table is known by itself, whatever device it is moved to and whoever asks: so there is one list for the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use udm_core::{MappedDevice, Table, TableSlot};

/// What is said instead of anything that a secret table says.
pub(crate) const HIDDEN: &str = "it was loaded with DM_SECURE_DATA, so what it says is shown nowhere";

static SECRETS: Mutex<Secrets> = Mutex::new(Secrets { tables: BTreeMap::new(), loading: Vec::new() });

struct Secrets {
    /// By their addresses, which are no others' as long as they are here.
    tables: BTreeMap<usize, Weak<Table>>,
    /// Devices that such a table is being loaded for, and the tables that they had before.
    loading: Vec<(u32, Vec<Weak<Table>>)>,
}

fn lock() -> MutexGuard<'static, Secrets> {
    SECRETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a table is secret.
pub(crate) fn mark(table: &Arc<Table>) {
    let mut secrets = lock();
    secrets.tables.retain(|_, table| table.strong_count() > 0);
    secrets.tables.insert(Arc::as_ptr(table).addr(), Arc::downgrade(table));
}

/// Whether what the table of that device says must not be written anywhere.
pub(crate) fn is_secret(minor: u32, table: &Arc<Table>) -> bool {
    let secrets = lock();
    let new = |(of, before): &(u32, Vec<Weak<Table>>)| *of == minor && !before.iter().any(|other| is(other, table));
    secrets.tables.contains_key(&Arc::as_ptr(table).addr()) || secrets.loading.iter().any(new)
}

fn is(weak: &Weak<Table>, table: &Arc<Table>) -> bool {
    std::ptr::eq(weak.as_ptr(), Arc::as_ptr(table))
}

fn tables_of(md: &MappedDevice) -> impl Iterator<Item = Arc<Table>> {
    [TableSlot::Active, TableSlot::Inactive].into_iter().filter_map(|slot| md.table(slot))
}

/// A secret table is being loaded. What the device has got when this goes is secret, also when somebody else looked
/// earlier.
pub(crate) struct Loading(Arc<MappedDevice>);

impl Loading {
    pub(crate) fn begin(md: Arc<MappedDevice>) -> Self {
        let before = tables_of(&md).map(|table| Arc::downgrade(&table)).collect();
        lock().loading.push((md.devt().minor, before));
        Self(md)
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let minor = self.0.devt().minor;
        for table in tables_of(&self.0).filter(|table| is_secret(minor, table)) {
            mark(&table);
        }
        let mut secrets = lock();
        if let Some(at) = secrets.loading.iter().position(|(of, _)| *of == minor) {
            secrets.loading.swap_remove(at);
        }
    }
}
