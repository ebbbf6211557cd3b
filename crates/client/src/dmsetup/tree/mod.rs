//! The mapped devices and what they stand on, as libdevmapper's `dm_tree` links them: which
//! devices are at the top, and in which order (`libdm-deptree.c`, 1.02.185).

mod build;
mod draw;

pub(super) use draw::{Drawing, Symbols, draw};

use std::collections::HashMap;
use udm_base::DevT;

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
        tree.push(DevT::new(0, 0));
        tree
    }

    fn push(&mut self, dev: DevT) -> usize {
        let (name, uuid) = (String::new(), String::new());
        self.nodes.push(TreeNode { dev, name, uuid, state: None, uses: Vec::new(), used_by: Vec::new() });
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

    /// Nothing is beneath the node.
    fn link_to_bottom(&mut self, node: usize) {
        self.nodes[node].uses.push(ROOT);
        self.nodes[ROOT].used_by.push(node);
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A tree of `(name, minor, stands on)` in the order given; majors 253 are mapped.
    pub(in crate::dmsetup) fn tree(devices: &[(&str, u32, &[DevT])]) -> Tree {
        fn add(tree: &mut Tree, devices: &[(&str, u32, &[DevT])], parent: usize, dev: DevT) {
            if let Some(node) = tree.find(dev) {
                return tree.link(parent, node);
            }
            let node = tree.push(dev);
            tree.link(parent, node);
            let mapped = devices.iter().find(|d| dev.major == 253 && d.1 == dev.minor);
            let deps = mapped.map_or(&[][..], |d| d.2);
            if let Some(device) = mapped {
                tree.nodes[node].name = device.0.to_owned();
                tree.nodes[node].state =
                    Some(NodeState { suspended: false, read_only: device.1 == 4, open_count: 1, has_table: true });
            }
            if deps.is_empty() {
                tree.link_to_bottom(node);
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
