//! How the tree is made: every device is asked what it stands on.

use super::{NodeState, ROOT, Tree, TreeNode};
use crate::dmsetup::app::{App, Done, Failed};
use crate::dmsetup::task::{Answer, Task, TaskType};
use udm_base::DevT;
use udm_control::codec::Flags;

impl TreeNode {
    /// Of a mapped device, what it has answered.
    fn show(&mut self, answer: &Answer) {
        (self.name, self.uuid) = (answer.name.clone(), answer.uuid.clone());
        self.state = Some(NodeState {
            suspended: answer.has(Flags::SUSPEND),
            read_only: answer.has(Flags::READONLY),
            open_count: answer.header.open_count,
            has_table: answer.has_table(),
        });
    }
}

impl App<'_, '_> {
    /// Build the tree of all devices, once. Says "No devices found" where there are none.
    pub(in crate::dmsetup) fn build_tree(&mut self) -> Done {
        if self.tree.is_some() {
            return Ok(());
        }
        let listed = self.listed()?;
        if listed.is_empty() {
            self.print("No devices found\n");
        }
        let mut tree = Tree::new();
        let mut result = Ok(());
        for device in &listed {
            if let Err(failed) =
                self.add_stack(&mut tree, device.dev, &listed.iter().map(|l| l.dev.major).collect::<Vec<_>>())
            {
                self.tell(&failed);
                result = Err(Failed::told());
            }
        }
        self.tree = Some(tree);
        result
    }

    /// Add a device and all that it stands on. What is above is added before what is beneath, and
    /// a device that is met again is linked again but not followed again.
    fn add_stack(&mut self, tree: &mut Tree, dev: DevT, mapped_majors: &[u32]) -> Done {
        let mut pending = vec![(ROOT, dev)];
        while let Some((parent, dev)) = pending.pop() {
            if let Some(node) = tree.find(dev) {
                tree.link(parent, node);
                continue;
            }
            if !mapped_majors.contains(&dev.major) {
                let node = tree.push(dev);
                tree.link(parent, node);
                tree.link_to_bottom(node);
                continue;
            }
            let mut task = Task::bare(TaskType::Deps);
            task.dev(dev);
            let answer = self.run(&task)?;
            let node = tree.push(dev);
            tree.nodes[node].show(&answer);
            tree.link(parent, node);
            if answer.deps.is_empty() {
                tree.link_to_bottom(node);
            }
            pending.extend(answer.deps.iter().rev().map(|&dep| (node, dep)));
        }
        Ok(())
    }
}
