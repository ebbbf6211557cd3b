//! The mapped devices and what they stand on, as libdevmapper's `dm_tree` links them: which
//! devices are at the top, and in which order (`libdm-deptree.c`, 1.02.185).

mod draw;

pub(super) use draw::{Drawing, Symbols, draw};

use super::app::{App, Done, Failed};
use super::task::{Answer, TaskType};
use std::collections::HashMap;
use udm_base::DevT;
use udm_control::codec::Flags;

/// The root, which is no device: above the topmost and beneath the lowest.
const ROOT: usize = 0;

/// A device in the tree.
#[derive(Clone, Debug)]
pub(super) struct TreeNode {
    pub(super) dev: DevT,
    /// Empty for a device that is not mapped.
    pub(super) name: String,
    pub(super) uuid: String,
    /// Of a mapped device.
    pub(super) state: Option<NodeState>,
    uses: Vec<usize>,
    used_by: Vec<usize>,
}

/// What the tree shows of a mapped device.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeState {
    pub(super) suspended: bool,
    pub(super) read_only: bool,
    pub(super) open_count: i32,
    pub(super) has_table: bool,
}

/// All devices.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Vec<TreeNode>,
    by_dev: HashMap<DevT, usize>,
}

/// Which way a walk goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// To what a device stands on.
    Down,
    /// To what stands on a device.
    Up,
}

impl Tree {
    fn new() -> Self {
        let mut tree = Self { nodes: Vec::new(), by_dev: HashMap::new() };
        tree.push(DevT::new(0, 0), None);
        tree
    }

    fn push(&mut self, dev: DevT, answer: Option<&Answer>) -> usize {
        let state = answer.map(|a| NodeState {
            suspended: a.has(Flags::SUSPEND),
            read_only: a.has(Flags::READONLY),
            open_count: a.header.open_count,
            has_table: a.has_table(),
        });
        let name = answer.map(|a| a.name.clone()).unwrap_or_default();
        let uuid = answer.map(|a| a.uuid.clone()).unwrap_or_default();
        self.nodes.push(TreeNode { dev, name, uuid, state, uses: Vec::new(), used_by: Vec::new() });
        self.by_dev.insert(dev, self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// The node of a device.
    pub(super) fn find(&self, dev: DevT) -> Option<usize> {
        self.by_dev.get(&dev).copied()
    }

    pub(super) fn node(&self, node: usize) -> &TreeNode {
        &self.nodes[node]
    }

    /// The neighbours of a node; for the top and the bottom, the root is among them.
    pub(super) fn neighbours(&self, node: usize, direction: Direction) -> impl Iterator<Item = usize> + '_ {
        let node = &self.nodes[node];
        if direction == Direction::Down { &node.uses } else { &node.used_by }.iter().copied()
    }

    /// How many neighbours are devices.
    pub(super) fn count(&self, node: usize, direction: Direction) -> usize {
        self.neighbours(node, direction).filter(|&n| n != ROOT).count()
    }

    fn unlink(&mut self, parent: usize, child: usize) {
        self.nodes[parent].uses.retain(|&n| n != child);
        self.nodes[child].used_by.retain(|&n| n != parent);
    }

    fn link(&mut self, parent: usize, child: usize) {
        // A device is at the top only while nothing stands on it.
        if parent == ROOT {
            if self.count(child, Direction::Up) > 0 {
                return;
            }
        } else {
            self.unlink(ROOT, child);
        }
        if !self.nodes[parent].uses.contains(&child) {
            self.nodes[parent].uses.push(child);
            self.nodes[child].used_by.push(parent);
        }
    }
}

impl App<'_, '_> {
    /// Build the tree of all devices, once. Says "No devices found" where there are none.
    pub(super) fn build_tree(&mut self) -> Done {
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
                let node = tree.push(dev, None);
                tree.link(parent, node);
                tree.nodes[node].uses.push(ROOT);
                tree.nodes[ROOT].used_by.push(node);
                continue;
            }
            let mut task = super::task::Task::bare(TaskType::Deps);
            task.dev(dev);
            let answer = self.run(&task)?;
            let node = tree.push(dev, Some(&answer));
            tree.link(parent, node);
            if answer.deps.is_empty() {
                tree.nodes[node].uses.push(ROOT);
                tree.nodes[ROOT].used_by.push(node);
            }
            pending.extend(answer.deps.iter().rev().map(|&dep| (node, dep)));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A tree of `(name, minor, stands on)` in the order given; majors 253 are mapped.
    pub(in crate::dmsetup) fn tree(devices: &[(&str, u32, &[DevT])]) -> Tree {
        fn add(tree: &mut Tree, devices: &[(&str, u32, &[DevT])], parent: usize, dev: DevT) {
            if let Some(node) = tree.find(dev) {
                return tree.link(parent, node);
            }
            let node = tree.push(dev, None);
            tree.link(parent, node);
            let mapped = devices.iter().find(|d| dev.major == 253 && d.1 == dev.minor);
            let deps = mapped.map_or(&[][..], |d| d.2);
            if let Some(device) = mapped {
                tree.nodes[node].name = device.0.to_owned();
                tree.nodes[node].state =
                    Some(NodeState { suspended: false, read_only: device.1 == 4, open_count: 1, has_table: true });
            }
            if deps.is_empty() {
                tree.nodes[node].uses.push(ROOT);
                tree.nodes[ROOT].used_by.push(node);
            }
            deps.iter().for_each(|&dep| add(tree, devices, node, dep));
        }
        let mut tree = Tree::new();
        devices.iter().for_each(|d| add(&mut tree, devices, ROOT, DevT::new(253, d.1)));
        tree
    }

    #[test]
    fn links() {
        let base = DevT::new(1, 0);
        let dm = |minor| DevT::new(253, minor);
        // `low` is met before `top`, which stands on it: it leaves the top.
        let tree = tree(&[("low", 0, &[base]), ("top", 1, &[dm(0), base])]);
        let names = |node, direction| -> Vec<String> {
            tree.neighbours(node, direction).map(|n| tree.node(n).name.clone()).collect()
        };
        assert_eq!(names(ROOT, Direction::Down), ["top"]);
        let low = tree.find(dm(0)).unwrap();
        assert_eq!(names(low, Direction::Up), ["top"]);
        assert_eq!(tree.count(low, Direction::Down), 1);
        assert_eq!(tree.count(tree.find(base).unwrap(), Direction::Down), 0);
        assert_eq!(names(tree.find(base).unwrap(), Direction::Up), ["low", "top"]);
        assert_eq!(tree.find(dm(9)), None);
    }
}
