//! Tables that were loaded with DM_SECURE_DATA: there may be a key in one.
//!
//! The text of such a table is in no file and in no log. On disk there is only its shape: where its targets begin and
//! end, and their types. So after a kill the next daemon makes an error table of the same size, and says why; with
//! `--replace` the new daemon gets everything, from memory to memory. A user with access to the device can see its
//! table, as with the kernel.
//!
//! A table is identified by itself, not by its device: so there is one list for the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use udm_core::{MappedDevice, Table, TableSlot};

/// The text that is shown in place of a secret table's.
pub(crate) const HIDDEN: &str = "it was loaded with DM_SECURE_DATA, so what it says is shown nowhere";

static SECRETS: Mutex<Secrets> = Mutex::new(Secrets { tables: BTreeMap::new(), loading: Vec::new() });

struct Secrets {
    /// By their addresses, which are unique while the tables are in this list.
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

/// Whether the table of that device is secret.
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

/// A secret table is being loaded. The table that the device has got when this is dropped is secret, even if another
/// thread has looked at it before.
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
