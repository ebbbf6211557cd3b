//! `ls --tree`: the tree in characters, as dmsetup and pstree draw it (`dmsetup.c`, 1.02.185).

use super::{Direction, ROOT, Tree};
use udm_base::DevT;

/// How deep the drawing goes; what lies deeper is left out.
const MAX_DEPTH: usize = 99;

/// The strings that the tree is drawn with.
#[derive(Debug)]
pub(in crate::dmsetup) struct Symbols {
    blank: &'static str,
    branch: &'static str,
    line: &'static str,
    last: &'static str,
    single: &'static str,
    first: &'static str,
    /// Do its bytes take as many columns as characters? Where not, a line's width is unknown.
    pub(in crate::dmsetup) has_width: bool,
}

impl Symbols {
    pub(in crate::dmsetup) const ASCII: Self =
        Self { blank: "  ", branch: "|-", line: "| ", last: "`-", single: "---", first: "-+-", has_width: true };
    pub(in crate::dmsetup) const UTF8: Self =
        Self {
            blank: "  ", branch: "├─", line: "│ ", last: "└─", single: "───", first: "─┬─", has_width: true
        };
    pub(in crate::dmsetup) const VT100: Self = Self {
        blank: "  ",
        branch: "\x1b(0\x0ftq\x1b(B",
        line: "\x1b(0\x0fx\x1b(B ",
        last: "\x1b(0\x0fmq\x1b(B",
        single: "\x1b(0\x0fqqq\x1b(B",
        first: "\x1b(0\x0fqwq\x1b(B",
        has_width: false,
    };
}

/// What is drawn, and how.
#[derive(Debug)]
pub(in crate::dmsetup) struct Drawing {
    pub(in crate::dmsetup) symbols: &'static Symbols,
    pub(in crate::dmsetup) device: bool,
    pub(in crate::dmsetup) block_name: bool,
    pub(in crate::dmsetup) active: bool,
    pub(in crate::dmsetup) read_write: bool,
    pub(in crate::dmsetup) open_count: bool,
    pub(in crate::dmsetup) uuid: bool,
    /// `table` or `status` was given: they draw nothing, but undo `compact`.
    pub(in crate::dmsetup) targets: bool,
    pub(in crate::dmsetup) compact: bool,
    pub(in crate::dmsetup) direction: Direction,
    /// Where lines are cut; `None` for nowhere.
    pub(in crate::dmsetup) width: Option<usize>,
}

impl Drawing {
    /// Names and numbers of devices from the top down, of any width.
    pub(in crate::dmsetup) const PLAIN: Self = Self {
        symbols: &Symbols::ASCII,
        device: true,
        block_name: false,
        active: false,
        read_write: false,
        open_count: false,
        uuid: false,
        targets: false,
        compact: false,
        direction: Direction::Down,
        width: None,
    };
}

impl Drawing {
    fn attributes(&self) -> bool {
        self.active || self.read_write || self.open_count || self.uuid
    }

    fn is_compact(&self) -> bool {
        self.compact && !self.attributes() && !self.targets
    }
}

/// A line being drawn: the column it is at, and what was held back.
struct Pen {
    out: Vec<u8>,
    width: Option<usize>,
    column: usize,
    /// The character that fills the last column, held until it is known whether more follow.
    held: Option<u8>,
}

impl Pen {
    fn byte(&mut self, byte: u8) {
        // Only the first byte of a UTF-8 character takes a column.
        let leads = byte & 0xc0 != 0x80;
        self.column += usize::from(leads);
        let Some(width) = self.width else { return self.out.push(byte) };
        if self.column <= width {
            self.out.push(byte);
        } else if self.column == width + 1 && leads {
            if self.held.is_some() || byte & 0x80 != 0 {
                self.out.extend_from_slice(b"...");
            } else {
                self.held = Some(byte);
                self.column -= 1;
            }
        }
    }

    fn text(&mut self, text: &str) {
        text.bytes().for_each(|b| self.byte(b));
    }

    fn newline(&mut self) {
        if Some(self.column) == self.width {
            self.out.extend(self.held);
        }
        self.held = None;
        self.out.push(b'\n');
        self.column = 1;
    }
}

struct Artist<'a> {
    tree: &'a Tree,
    drawing: &'a Drawing,
    block_name: &'a dyn Fn(&super::TreeNode) -> Option<String>,
    pen: Pen,
    /// For each depth: do more nodes follow there, and how wide is the one drawn?
    more: Vec<bool>,
    widths: Vec<usize>,
}

/// Draw. `block_name` gives the name of a device as a block device.
pub(in crate::dmsetup) fn draw(
    tree: &Tree,
    drawing: &Drawing,
    block_name: &dyn Fn(&super::TreeNode) -> Option<String>,
) -> Vec<u8> {
    let pen = Pen { out: Vec::new(), width: drawing.width, column: 1, held: None };
    let mut artist = Artist { tree, drawing, block_name, pen, more: Vec::new(), widths: Vec::new() };
    artist.children(ROOT, 0);
    artist.pen.out
}

impl Artist<'_> {
    fn children(&mut self, node: usize, depth: usize) {
        // The root closes the circle at either end.
        let direction = self.drawing.direction;
        let children: Vec<usize> = self.tree.neighbours(node, direction).filter(|&n| n != ROOT).collect();
        for (i, &child) in children.iter().enumerate() {
            let has_children = self.tree.count(child, direction) > 0;
            self.node(child, depth, i + 1 == children.len(), has_children);
            if has_children && depth < MAX_DEPTH {
                self.children(child, depth + 1);
            }
        }
    }

    fn node(&mut self, node: usize, depth: usize, is_last: bool, has_children: bool) {
        let (tree, drawing) = (self.tree, self.drawing);
        let node = tree.node(node);
        if depth >= MAX_DEPTH || node.name.is_empty() && !drawing.device && !drawing.block_name {
            return;
        }
        self.more.truncate(depth);
        self.widths.truncate(depth);
        // A node that was left out above still has its place.
        self.more.resize(depth, false);
        self.widths.resize(depth, 0);
        self.more.push(!is_last);
        self.widths.push(0);

        let compact = drawing.is_compact();
        let first_on_line = self.pen.column == 1;
        if !compact || first_on_line {
            self.prefix(depth);
        }
        let start = self.pen.column;
        if compact && !first_on_line {
            self.pen.text(if is_last { drawing.symbols.single } else { drawing.symbols.first });
        }
        self.pen.text(&node.name);
        if let Some(name) = Some(node).filter(|_| drawing.block_name).and_then(self.block_name) {
            self.pen.text(&format!(" <{name}>"));
        }
        if drawing.device {
            let DevT { major, minor } = node.dev;
            self.pen.text(&format!(" ({major}:{minor})"));
        }
        self.attributes(node);
        if compact {
            self.widths[depth] = self.pen.column - start;
        }
        if !compact || !has_children {
            self.pen.newline();
        }
    }

    fn attributes(&mut self, node: &super::TreeNode) {
        let Some(state) = node.state else { return };
        let drawing = self.drawing;
        let words = [
            drawing.active.then(|| if state.suspended { "SUSPENDED" } else { "ACTIVE" }.to_owned()),
            drawing.read_write.then(|| if state.read_only { "RO" } else { "RW" }.to_owned()),
            drawing.open_count.then(|| state.open_count.to_string()),
            drawing.uuid.then(|| node.uuid.clone()),
        ];
        if drawing.attributes() {
            let words: Vec<String> = words.into_iter().flatten().collect();
            self.pen.text(&format!(" [{}]", words.join(", ")));
        }
    }

    fn prefix(&mut self, depth: usize) {
        let symbols = self.drawing.symbols;
        for d in 0..depth {
            self.pen.text(&" ".repeat(self.widths[d] + 1));
            let more = self.more[d + 1];
            self.pen.text(match (d + 1 == depth, more) {
                (true, true) => symbols.branch,
                (true, false) => symbols.last,
                (false, true) => symbols.line,
                (false, false) => symbols.blank,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    const PLAIN: Drawing = Drawing { width: Some(80), ..Drawing::PLAIN };

    fn drawn(drawing: &Drawing) -> String {
        let dm = |minor| DevT::new(253, minor);
        let (a, b) = (DevT::new(1, 0), DevT::new(1, 1));
        let tree = tree(&[("alone", 4, &[]), ("low", 0, &[a]), ("mid", 1, &[b, dm(0)]), ("top", 2, &[dm(1), a])]);
        let name =
            |node: &super::super::TreeNode| Some(format!("dm-{}", node.dev.minor)).filter(|_| node.state.is_some());
        String::from_utf8(draw(&tree, drawing, &name)).unwrap()
    }

    #[test]
    fn drawings() {
        let check = |drawing: Drawing, expect: &[&str]| assert_eq!(drawn(&drawing).lines().collect::<Vec<_>>(), expect);
        check(
            PLAIN,
            &[
                "alone (253:4)",
                "top (253:2)",
                " |-mid (253:1)",
                " |  |- (1:1)",
                " |  `-low (253:0)",
                " |     `- (1:0)",
                " `- (1:0)",
            ],
        );
        check(Drawing { device: false, ..PLAIN }, &["alone", "top", " |-mid", " |  `-low"]);
        check(
            Drawing { symbols: &Symbols::UTF8, device: false, read_write: true, open_count: true, ..PLAIN },
            &["alone [RO, 1]", "top [RW, 1]", " ├─mid [RW, 1]", " │  └─low [RW, 1]"],
        );
        check(
            Drawing { compact: true, ..PLAIN },
            &[
                "alone (253:4)",
                "top (253:2)-+-mid (253:1)-+- (1:1)",
                "            |                `-low (253:0)--- (1:0)",
                "            `- (1:0)",
            ],
        );
        check(
            Drawing { direction: Direction::Up, device: false, block_name: true, width: None, ..PLAIN },
            &[
                "alone <dm-4>",
                "",
                " |-low <dm-0>",
                " |  `-mid <dm-1>",
                " |     `-top <dm-2>",
                " `-top <dm-2>",
                "",
                " `-mid <dm-1>",
                "    `-top <dm-2>",
            ],
        );
    }

    #[test]
    fn cut_lines() {
        let check = |width: usize, expect: &str| {
            let drawing = Drawing { width: Some(width), ..PLAIN };
            assert_eq!(drawn(&drawing).lines().next(), Some(expect), "{width}");
        };
        // Thirteen characters, the first of them in column 2.
        check(14, "alone (253:4)");
        check(13, "alone (253:4)");
        check(12, "alone (253:...");
        check(4, "alo...");
    }
}
