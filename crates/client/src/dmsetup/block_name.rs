//! Names of block devices.

use super::app::App;
use super::task::{Task, TaskType};
use udm_base::DevT;

impl App<'_, '_> {
    /// The name of a device that is not mapped, from sysfs. A `/` in a name stands there as `!`.
    pub(super) fn kernel_name(&self, dev: DevT) -> Option<String> {
        let link = std::fs::read_link(self.env.sysfs.join(format!("dev/block/{dev}"))).ok()?;
        Some(link.file_name()?.to_str()?.replace('!', "/"))
    }

    /// The name of a device that is not mapped, from sysfs or, of one that the system has no number
    /// for, as tables have it.
    fn host_name(&mut self, dev: DevT) -> Option<String> {
        let from_table = |hosts: Vec<(DevT, String)>| hosts.into_iter().find(|(number, _)| *number == dev);
        self.kernel_name(dev).or_else(|| from_table(self.transport().host_devices()).map(|(_, name)| name))
    }

    /// The name of a device: `dm-N` for a mapped one, or the name it was given with
    /// `prefer_given`. As in the kernel, a mapped device has none before its first table.
    pub(super) fn block_name(&mut self, dev: DevT, prefer_given: bool) -> Option<String> {
        if !self.mapped_majors().contains(&dev.major) {
            return self.host_name(dev);
        }
        let mut task = Task::bare(TaskType::Info);
        task.dev(dev);
        let answer = self.run(&task).ok().filter(|a| a.exists && a.has_table())?;
        Some(if prefer_given { answer.name } else { format!("dm-{}", dev.minor) })
    }

    /// The major numbers of mapped devices; there is one, unless there is no device.
    fn mapped_majors(&mut self) -> Vec<u32> {
        let mut majors: Vec<u32> = self.listed().unwrap_or_default().iter().map(|d| d.dev.major).collect();
        majors.dedup();
        majors
    }
}
