//! `ls`, `ls --tree`, and the `-o` of both.

use super::status;
use crate::dmsetup::app::{App, Call, DevNames, Done, Failed, Listing};
use crate::dmsetup::tree::{Direction, Drawing, Symbols, draw};

/// The columns of a line of the tree when the terminal does not tell.
const DEFAULT_WIDTH: usize = 80;

impl App<'_, '_> {
    /// Parse `-o` where it is not for a report.
    pub(super) fn listing_options(&self) -> Done<Listing> {
        let o = &self.options;
        if o.tree {
            let drawing = tree_options(o.options.as_deref().unwrap_or(""), self.speaks_utf8(), self.env.columns)?;
            return Ok(Listing { tree: Some(drawing), ..Listing::default() });
        }
        let mut listing = Listing::default();
        let Some(options) = o.options.as_deref().filter(|_| !o.columns) else { return Ok(listing) };
        for word in words(options) {
            // A word may be cut short anywhere.
            let choices = [("devno", DevNames::Number), ("blkdevname", DevNames::Block), ("devname", DevNames::Given)];
            let found = choices.iter().find(|(name, _)| name.starts_with(word));
            listing.names = found
                .map(|(_, names)| *names)
                .ok_or_else(|| Failed::new(format!("-o has {word:?}: expected devno, devname or blkdevname")))?;
        }
        Ok(listing)
    }

    fn speaks_utf8(&self) -> bool {
        let locale =
            ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|v| self.env.vars.get(*v).filter(|l| !l.is_empty()));
        locale.is_some_and(|l| {
            let l = l.to_ascii_lowercase();
            l.contains("utf-8") || l.contains("utf8")
        })
    }
}

/// The words between commas: none for an empty text, an empty one for what follows a last comma.
fn words(options: &str) -> impl Iterator<Item = &str> {
    let mut words = options.split(',').peekable();
    std::iter::from_fn(move || {
        let word = words.next()?;
        (!word.is_empty() || words.peek().is_some()).then_some(word)
    })
}

fn tree_options(options: &str, utf8: bool, columns: Option<u16>) -> Done<Drawing> {
    let symbols = if utf8 { &Symbols::UTF8 } else { &Symbols::ASCII };
    let mut d = Drawing { symbols, ..Drawing::PLAIN };
    let mut cut = true;
    type Set = fn(&mut Drawing);
    let choices: [(&str, Set); 15] = [
        ("device", |d| d.device = true),
        ("blkdevname", |d| d.block_name = true),
        ("nodevice", |d| d.device = false),
        ("status", |d| d.targets = true),
        ("table", |d| d.targets = true),
        ("active", |d| d.active = true),
        ("open", |d| d.open_count = true),
        ("uuid", |d| d.uuid = true),
        ("rw", |d| d.read_write = true),
        ("utf", |d| d.symbols = &Symbols::UTF8),
        ("vt100", |d| d.symbols = &Symbols::VT100),
        ("ascii", |d| d.symbols = &Symbols::ASCII),
        ("inverted", |d| d.direction = Direction::Up),
        ("compact", |d| d.compact = true),
        ("notrunc", |_| {}),
    ];
    for word in words(options) {
        let Some((name, set)) = choices.iter().find(|(name, _)| name.starts_with(word)) else {
            let names: Vec<&str> = choices.iter().map(|c| c.0).collect();
            return Err(Failed::new(format!("-o has {word:?}: expected one of {}", names.join(", "))));
        };
        cut &= *name != "notrunc";
        set(&mut d);
    }
    let terminal = columns.map(usize::from).filter(|&c| c > 3 && d.symbols.has_width).map(|c| c - 3);
    d.width = cut.then(|| terminal.unwrap_or(DEFAULT_WIDTH));
    Ok(d)
}

pub(super) fn ls(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    if app.options.target.is_some() || app.options.exec.is_some() {
        return status::status(app, call);
    }
    if app.options.tree {
        return tree(app);
    }
    app.for_each_device(call, true, show_name)
}

fn show_name(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let Some(device) = call.listed else { return Ok(()) };
    if app.options.json {
        let device = app.json_name(device);
        app.json.push(device);
        return Ok(());
    }
    let name = match app.listing.names {
        DevNames::Number => None,
        DevNames::Block => app.block_name(device.dev, false),
        DevNames::Given => app.block_name(device.dev, true),
    };
    app.print(format_args!("{}\t({})\n", device.name, name.unwrap_or_else(|| device.dev.to_string())));
    Ok(())
}

fn tree(app: &mut App<'_, '_>) -> Done {
    let built = app.build_tree();
    let hosts =
        if app.listing.tree.as_ref().is_some_and(|d| d.block_name) { app.transport().host_devices() } else { vec![] };
    let host = |dev| hosts.iter().find(|(number, _)| *number == dev).map(|(_, name)| name.clone());
    if let (Some(tree), Some(drawing)) = (&app.tree, &app.listing.tree) {
        let name = |node: &crate::dmsetup::tree::TreeNode| match node.state {
            Some(state) => state.has_table.then(|| format!("dm-{}", node.dev.minor)),
            None => app.kernel_name(node.dev).or_else(|| host(node.dev)),
        };
        let text = draw(tree, drawing, &name);
        // What cuts a line may cut a character in two.
        let _ = app.env.stdout.write_all(&text);
    }
    built
}
