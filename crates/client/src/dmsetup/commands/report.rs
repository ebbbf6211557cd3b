//! `-c`: from options to a report, and the values of its fields.

use super::CommandType;
use crate::dmsetup::app::{App, Done, Failed};
use crate::dmsetup::fields::{self, FieldId, Group, Value};
use crate::dmsetup::mangle::{self, Mangling, Text};
use crate::dmsetup::options::ReadAhead;
use crate::dmsetup::report::{Layout, NewReport, Report};
use crate::dmsetup::split_name::SplitName;
use crate::dmsetup::task::{Answer, TaskType};
use crate::dmsetup::tree::Direction;
use udm_base::DevT;
use udm_control::codec::Flags;

const DEFAULT_FIELDS: &str = "name,major,minor,attr,open,segments,events,uuid";
const SPLITNAME_FIELDS: &str = "vg_name,lv_name,lv_layer";
/// What the kernel reads ahead where nothing asks for more: 128 KiB (`VM_READAHEAD_PAGES`).
const READ_AHEAD: u64 = 256;

impl App<'_, '_> {
    /// As dmsetup, which looks for the word anywhere.
    pub(super) fn asks_for_help(&self) -> bool {
        self.options.options.as_ref().is_some_and(|o| o.contains("help"))
    }

    pub(super) fn start_report(&mut self, command: &str) -> Done {
        let o = &self.options;
        let (default, group) = match command {
            "splitname" => (SPLITNAME_FIELDS, Some(Group::SplitName)),
            _ => (DEFAULT_FIELDS, None),
        };
        let fields = match o.options.as_deref() {
            None => default.to_owned(),
            Some(options) => match options.strip_prefix('+') {
                Some(more) => format!("{default},{more}"),
                None => options.to_owned(),
            },
        };
        if o.sort.is_some() && matches!(command, "status" | "table") {
            return Err(Failed::new(format!(
                "--sort does not go with {command}: only the rows of a report are sorted"
            )));
        }
        let layout = Layout {
            aligned: !o.no_headings && !o.name_prefixes && o.separator.is_none(),
            headings: !o.no_headings && !self.asks_for_help(),
            prefixes: o.name_prefixes,
            quoted: !o.unquoted,
            columns_as_rows: o.rows,
            separator: o.separator.clone().unwrap_or_else(|| if o.no_headings { ":" } else { " " }.to_owned()),
        };
        let keys = o.sort.clone().unwrap_or_default();
        match Report::build(&fields, &keys, o.select.as_deref(), group, layout) {
            Ok(NewReport { report, help }) => {
                self.explain(help);
                let wants_tree = report.wants(Group::Tree);
                self.report = Some(report);
                if wants_tree { self.build_tree() } else { Ok(()) }
            }
            Err(error) => {
                self.explain(error.help);
                Err(Failed::new(error.message))
            }
        }
    }

    /// The fields that `help -c` lists.
    pub(super) fn list_fields(&mut self) {
        self.explain(fields::help(false));
    }

    /// Add a device to the report, or run the command that `-S` chooses devices for.
    pub(super) fn report_device(&mut self, answer: &Answer) -> Done {
        let selecting = self.for_selected;
        let Some(report) = &self.report else { return Ok(()) };
        if report.is_silent() {
            return Ok(());
        }
        let fields = report.fields();
        let wants_deps = report.wants(Group::Deps);
        let dev = answer.dev();
        let deps = if wants_deps {
            let mut task = self.task(TaskType::Deps);
            task.dev(dev);
            self.run(&task)?.deps
        } else {
            Vec::new()
        };
        let mut values = Vec::with_capacity(fields.len());
        for field in fields {
            values.push(self.value(field.id, answer, &deps)?);
        }
        let Some(report) = &mut self.report else { return Ok(()) };
        let selected = report.add(values, selecting.is_none());
        match selecting {
            Some(command) if selected => self.run_selected(command, &answer.name),
            _ => Ok(()),
        }
    }

    fn run_selected(&mut self, command: &'static CommandType, name: &str) -> Done {
        let args = [name.to_owned()];
        (command.run)(self, &super::Call { command, args: &args, listed: None, one_of_many: true })
    }

    fn value(&mut self, field: FieldId, answer: &Answer, deps: &[DevT]) -> Done<Value> {
        let string = |text: &str| Value::String(text.to_owned());
        let dev = answer.dev();
        let suspended = answer.has(Flags::SUSPEND);
        let read_only = answer.has(Flags::READONLY);
        let tables = (answer.has(Flags::ACTIVE_PRESENT), answer.has(Flags::INACTIVE_PRESENT));
        let mode = self.mangling;
        let mangled = |text: &str, what| mangle::to_mangled(text, what, mode).map(|t| string(&t)).map_err(Failed::from);
        let unmangled =
            |text: &str| if mode == Mangling::None { mangle::to_unmangled(text.as_bytes()) } else { text.to_owned() };
        Ok(match field {
            FieldId::Name => string(&answer.name),
            FieldId::MangledName => mangled(&answer.name, Text::Name)?,
            FieldId::UnmangledName => Value::String(unmangled(&answer.name)),
            FieldId::Uuid => string(&answer.uuid),
            FieldId::MangledUuid => mangled(&answer.uuid, Text::Uuid)?,
            FieldId::UnmangledUuid => Value::String(unmangled(&answer.uuid)),
            FieldId::ReadAhead => {
                let sectors = self.read_ahead(answer).unwrap_or(0);
                Value::Number(sectors, sectors.to_string())
            }
            FieldId::BlkDevName => Value::String(self.required_block_name(dev)?),
            FieldId::Attr => {
                let letter = |on, yes, no| if on { yes } else { no };
                Value::String(
                    [
                        letter(tables.0, 'L', '-'),
                        letter(tables.1, 'I', '-'),
                        letter(suspended, 's', '-'),
                        letter(read_only, 'r', 'w'),
                    ]
                    .iter()
                    .collect(),
                )
            }
            FieldId::TablesLoaded => string(match tables {
                (true, true) => "Both",
                (true, false) => "Live",
                (false, true) => "Inactive",
                (false, false) => "None",
            }),
            FieldId::Suspended => string(if suspended { "Suspended" } else { "Active" }),
            FieldId::ReadOnly => string(if read_only { "Read-only" } else { "Writeable" }),
            FieldId::DevNo => Value::String(dev.to_string()),
            FieldId::Major => Value::number(dev.major),
            FieldId::Minor => Value::number(dev.minor),
            FieldId::Open => Value::number(answer.header.open_count),
            FieldId::Segments => Value::number(answer.header.target_count),
            FieldId::Events => Value::number(answer.header.event_nr),
            FieldId::DeviceCount => Value::number(deps.len() as i64),
            FieldId::DevNosUsed => Value::String(join(deps.iter())),
            FieldId::BlkDevsUsed => {
                let names: Done<Vec<String>> = deps.iter().map(|&dep| self.required_block_name(dep)).collect();
                Value::String(names?.join(","))
            }
            FieldId::DevsUsed => Value::String(self.neighbour_names(dev, Direction::Down)?),
            FieldId::NamesUsingDev => Value::String(self.neighbour_names(dev, Direction::Up)?),
            FieldId::DeviceRefCount => {
                let (tree, node) = self.node(dev)?;
                Value::number(tree.count(node, Direction::Up) as i64)
            }
            FieldId::DevNosUsingDev => {
                let (tree, node) = self.node(dev)?;
                let above = tree.neighbours(node, Direction::Up).map(|n| tree.node(n).dev);
                Value::String(join(above.filter(|d| *d != DevT::new(0, 0))))
            }
            FieldId::Subsystem => Value::String(SplitName::of_device(&answer.uuid, &answer.name).subsystem),
            FieldId::VgName => Value::String(SplitName::of_device(&answer.uuid, &answer.name).vg),
            FieldId::LvName => Value::String(SplitName::of_device(&answer.uuid, &answer.name).lv),
            FieldId::LvLayer => Value::String(SplitName::of_device(&answer.uuid, &answer.name).layer),
            FieldId::Selected | FieldId::Help => Value::number(1),
        })
    }

    /// Sectors read ahead; `None` for a device that has had no table.
    pub(super) fn read_ahead(&mut self, answer: &Answer) -> Option<u64> {
        if !answer.has_table() {
            return None;
        }
        let stats = self.transport().device_stats(&answer.name);
        let told = stats.and_then(|stats| stats.get("read_ahead").and_then(serde_json::Value::as_u64));
        Some(told.unwrap_or(READ_AHEAD))
    }

    /// `--readahead`, once a device has been resumed.
    pub(super) fn set_read_ahead(&mut self, answer: &Answer) {
        let has = self.read_ahead(answer).unwrap_or(0);
        let sectors = match self.options.read_ahead {
            ReadAhead::Auto => return,
            ReadAhead::AtLeast(sectors) if has >= u64::from(sectors) => return,
            ReadAhead::AtLeast(sectors) | ReadAhead::Exactly(sectors) => sectors,
        };
        self.transport().set_read_ahead(&answer.name, sectors);
    }

    fn required_block_name(&mut self, dev: DevT) -> Done<String> {
        self.block_name(dev, false).ok_or_else(|| Failed::new(format!("{dev} has no name as a block device")))
    }

    fn node(&self, dev: DevT) -> Done<(&crate::dmsetup::tree::Tree, usize)> {
        let found = self.tree.as_ref().and_then(|tree| Some((tree, tree.find(dev)?)));
        found.ok_or_else(|| Failed::new(format!("{dev} was not there when the devices were listed")))
    }

    fn neighbour_names(&self, dev: DevT, direction: Direction) -> Done<String> {
        let (tree, node) = self.node(dev)?;
        let names = tree.neighbours(node, direction).map(|n| tree.node(n).name.as_str());
        Ok(names.filter(|n| !n.is_empty()).collect::<Vec<_>>().join(","))
    }

    /// The parts of a name as a row.
    pub(super) fn report_split_name(&mut self, split: &SplitName) -> Done {
        let Some(report) = &mut self.report else { return Ok(()) };
        let parts = report.fields().into_iter().map(|field| match field.id {
            FieldId::Subsystem => Ok(Value::String(split.subsystem.clone())),
            FieldId::VgName => Ok(Value::String(split.vg.clone())),
            FieldId::LvName => Ok(Value::String(split.lv.clone())),
            FieldId::LvLayer => Ok(Value::String(split.layer.clone())),
            FieldId::Selected => Ok(Value::number(1)),
            _ => Err(Failed::new(format!(
                "a name alone has no field {:?}: splitname knows the parts of names",
                field.name
            ))),
        });
        let values = parts.collect::<Done<Vec<Value>>>()?;
        report.add(values, true);
        Ok(())
    }
}

fn join<T: std::fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|i| i.to_string()).collect::<Vec<_>>().join(",")
}
