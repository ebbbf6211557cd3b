//! Loading, clearing and showing tables.

use super::Handler;
use super::error::{Refusal, utf8};
use crate::codec::{Flags, Reply, TargetSpec};
use crate::wire::wipe;
use std::sync::Arc;
use udm_base::DevT;
use udm_core::{LoadOptions, MappedDevice, StatusKind, TableLine};

impl Handler<'_> {
    /// `table_load`
    pub(super) fn load(&self) -> Result<Reply, Refusal> {
        let md = self.device()?;
        self.load_lines(&md).map_err(|error| self.about_text(error))?;
        Ok(self.reply_about(&md))
    }

    fn load_lines(&self, md: &Arc<MappedDevice>) -> Result<(), Refusal> {
        let specs = self.request.targets()?;
        let mut lines = specs.iter().map(line_of).collect::<Result<Vec<_>, _>>()?;
        let (read_only, secret) = (self.request.flags().contains(Flags::READONLY), self.request.is_secure());
        let options = LoadOptions { read_only, cwd: self.caller.cwd, cancel: self.caller.cancel, secret };
        let loaded = md.load_as(&lines, &options);
        if secret {
            lines.iter_mut().for_each(|line| wipe(&mut std::mem::take(&mut line.params).into_bytes()));
        }
        Ok(loaded?)
    }

    /// `table_clear`
    pub(super) fn clear(&self) -> Result<Reply, Refusal> {
        let md = self.device()?;
        md.clear();
        Ok(self.reply_about(&md))
    }

    /// `table_deps`. The kernel puts a device at the head of its list, so that the one opened last comes first.
    pub(super) fn deps(&self) -> Result<Reply, Refusal> {
        let md = self.device()?;
        let mut reply = self.reply_about(&md);
        if let Some(table) = self.queried_table(&md) {
            let devices = table.devices().iter().rev();
            let numbers: Vec<DevT> = devices.map(|dev| self.registry.number_of(dev)).collect();
            reply.deps(&numbers);
        }
        Ok(reply)
    }

    /// `table_status`
    pub(super) fn table_status(&self) -> Result<Reply, Refusal> {
        Ok(self.reply_with_status(&*self.device()?))
    }

    /// What is known of the device, and each target's line or status (`retrieve_status`).
    pub(super) fn reply_with_status(&self, md: &MappedDevice) -> Reply {
        let mut reply = self.reply_about(md);
        if let Some(table) = self.queried_table(md) {
            let flags = self.request.flags();
            let kind = if flags.contains(Flags::STATUS_TABLE) {
                StatusKind::Table
            } else if flags.contains(Flags::IMA_MEASUREMENT) {
                StatusKind::Measurement
            } else {
                StatusKind::Info { noflush: flags.contains(Flags::NOFLUSH) }
            };
            reply.targets(
                table
                    .lines(kind)
                    .iter()
                    .map(|l| TargetSpec::new(l.start, l.len, l.target.as_bytes(), l.params.as_bytes())),
            );
        }
        reply
    }
}

fn line_of(spec: &TargetSpec<'_>) -> Result<TableLine, Refusal> {
    let target = utf8("the target", spec.target_type)?.to_owned();
    let params = utf8("the arguments", spec.params)?.to_owned();
    Ok(TableLine { start: spec.start, len: spec.len, target, params })
}
