//! `udm thin`: a thin pool's metadata, with the options of Debian's thin-provisioning-tools.

mod metadata;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use udm_formats::thin::tools::check::{self, Depth, Fault, Listener};
use udm_formats::thin::tools::restore::Overrides;
use udm_formats::thin::tools::size::{self, Form, Size, Unit};
use udm_formats::thin::tools::{
    Emit, Error, Human, Progress, View, Which, Xml, delta, dump, ls, repair, restore, rmap,
};

use self::metadata::{Access, open};
use crate::progress::Bar;

#[derive(Args)]
pub(crate) struct ThinArgs {
    #[command(subcommand)]
    command: ThinCommand,
}

#[derive(Subcommand)]
enum ThinCommand {
    /// Check everything in a pool's metadata, down to each reference count
    Check(CheckArgs),
    /// Print a pool's mappings as XML
    Dump(DumpArgs),
    /// Make metadata from the XML of a dump
    Restore(RestoreArgs),
    /// Make new metadata of what can be read of damaged ones
    Repair(RepairArgs),
    /// Print where two devices of a pool differ
    Delta(DeltaArgs),
    /// List the devices of a pool
    Ls(LsArgs),
    /// Print which devices have which data blocks
    Rmap(RmapArgs),
    /// Estimate how large a metadata device a pool wants
    MetadataSize(SizeArgs),
}

#[derive(Args)]
struct CheckArgs {
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Check the metadata snapshot, also while the pool is live
    #[arg(short, long)]
    metadata_snap: bool,
    /// Take down counts that are too high: blocks that nobody refers to are free again
    #[arg(long, conflicts_with_all = ["metadata_snap", "skip_mappings", "super_block_only", "ignore_non_fatal_errors"])]
    auto_repair: bool,
    /// Clear the flag that asked for this check, when nothing is wrong
    #[arg(long, conflicts_with_all = ["metadata_snap", "skip_mappings", "super_block_only", "ignore_non_fatal_errors"])]
    clear_needs_check_flag: bool,
    /// Only what can lose data
    #[arg(long)]
    ignore_non_fatal_errors: bool,
    /// Only the superblock and the devices
    #[arg(long)]
    skip_mappings: bool,
    /// Only the superblock
    #[arg(long)]
    super_block_only: bool,
    /// The metadata: a file or block device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// Whose superblock to read.
#[derive(Args)]
struct SnapArgs {
    /// Read the metadata snapshot, also while the pool is live; =BLOCK says where it lies
    #[arg(short, long, value_name = "BLOCK", num_args = 0..=1, require_equals = true)]
    metadata_snap: Option<Option<u64>>,
}

impl SnapArgs {
    fn which(&self) -> Which {
        match self.metadata_snap {
            None => Which::Main,
            Some(None) => Which::Held,
            Some(Some(at)) => Which::At(at),
        }
    }

    fn view(&self, device: &Path) -> Result<View, String> {
        view(device, self.which())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Xml,
    #[value(name = "human_readable")]
    HumanReadable,
}

/// What to take instead of what the superblock or the XML says.
#[derive(Args)]
struct OverrideArgs {
    /// Take this transaction id
    #[arg(long, value_name = "NUMBER")]
    transaction_id: Option<u64>,
    /// Take this block size, in sectors
    #[arg(long, value_name = "SECTORS")]
    data_block_size: Option<u32>,
    /// Take this number of data blocks
    #[arg(long, value_name = "NUMBER")]
    nr_data_blocks: Option<u64>,
}

impl OverrideArgs {
    fn get(&self) -> Overrides {
        let Self { transaction_id, data_block_size, nr_data_blocks } = *self;
        Overrides { transaction: transaction_id, data_block_size, data_blocks: nr_data_blocks }
    }
}

#[derive(Args)]
struct DumpArgs {
    /// How to write it
    #[arg(short, long, value_enum, default_value = "xml")]
    format: Format,
    /// Dump what can still be read of damaged metadata
    #[arg(short, long, conflicts_with_all = ["metadata_snap", "dev_id", "skip_mappings"])]
    repair: bool,
    #[command(flatten)]
    snap: SnapArgs,
    /// Write to this file
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only this device; may be given several times
    #[arg(long, value_name = "ID")]
    dev_id: Vec<u32>,
    /// Devices without their mappings
    #[arg(long)]
    skip_mappings: bool,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// The metadata: a file or block device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

#[derive(Args)]
struct RestoreArgs {
    /// The XML
    #[arg(short, long, value_name = "FILE")]
    input: PathBuf,
    /// The metadata: a file, as large as they may become, or block device. What is there is lost
    #[arg(short, long, value_name = "DEVICE")]
    output: PathBuf,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Args)]
struct RepairArgs {
    /// The damaged metadata: a file or block device
    #[arg(short, long, value_name = "DEVICE")]
    input: PathBuf,
    /// The new metadata: another file or block device. What is there is lost
    #[arg(short, long, value_name = "DEVICE")]
    output: PathBuf,
    #[command(flatten)]
    overrides: OverrideArgs,
}

#[derive(Args)]
struct DeltaArgs {
    /// One device
    #[arg(long, visible_alias = "snap1", value_name = "ID")]
    thin1: u32,
    /// The other
    #[arg(long, visible_alias = "snap2", value_name = "ID")]
    thin2: u32,
    #[command(flatten)]
    snap: SnapArgs,
    /// With the data blocks
    #[arg(long)]
    verbose: bool,
    /// The metadata: a file or block device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

#[derive(Args)]
struct LsArgs {
    /// Read the metadata snapshot, also while the pool is live
    #[arg(short, long)]
    metadata_snap: bool,
    /// No line with the names of the columns
    #[arg(long)]
    no_headers: bool,
    /// Columns, with commas between; an unknown one lists those that there are
    #[arg(short = 'o', long, value_name = "FIELDS", default_value = ls::DEFAULT, value_delimiter = ',')]
    format: Vec<ls::Field>,
    /// The metadata: a file or block device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

#[derive(Args)]
struct RmapArgs {
    /// Data blocks from BEGIN to one before END; may be given several times
    #[arg(long, value_name = "BEGIN..END", required = true, value_parser = region)]
    region: Vec<Range<u64>>,
    /// The metadata: a file or block device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Numeric {
    Plain,
    Short,
    Long,
}

#[derive(Args)]
struct SizeArgs {
    /// The pool's block size, with a unit of bskKmMgGtTpPeE; sectors without
    #[arg(short, long, value_name = "SIZE")]
    block_size: Size,
    /// The size of the pool's data device
    #[arg(short = 's', long, value_name = "SIZE")]
    pool_size: Size,
    /// Thin devices and snapshots at most
    #[arg(short, long, value_name = "NUMBER")]
    max_thins: Size,
    /// The unit of the result
    #[arg(short, long, default_value = "s")]
    unit: Unit,
    /// Only the number, with the unit's letter or name if asked for
    #[arg(short, long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "plain")]
    numeric_only: Option<Numeric>,
}

fn region(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?}: expected BEGIN..END, as 5..45 for blocks 5 to 44");
    let (begin, end) = text.split_once("..").ok_or_else(wrong)?;
    let (begin, end) = (begin.parse().map_err(|_| wrong())?, end.parse().map_err(|_| wrong())?);
    if begin < end { Ok(begin..end) } else { Err(wrong()) }
}

/// Debian's tools take optional values attached, as in `-m123` and `-nlong`: they get the `=` that is wanted here.
pub(crate) fn attach_values(mut argv: Vec<OsString>) -> Vec<OsString> {
    let words: Vec<&str> = argv.iter().map(|word| word.to_str().unwrap_or("")).collect();
    let Some(thin) = words.iter().position(|word| *word == "thin") else { return argv };
    let option = match words.get(thin + 1) {
        Some(&("dump" | "delta")) => "-m",
        Some(&"metadata-size") => "-n",
        _ => return argv,
    };
    let last = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let attached: Vec<(usize, String)> = (thin + 2..last)
        .filter_map(|i| {
            let value = words[i].strip_prefix(option)?;
            (!value.is_empty() && !value.starts_with('=')).then(|| (i, format!("{option}={value}")))
        })
        .collect();
    for (i, word) in attached {
        argv[i] = word.into();
    }
    argv
}

/// Runs the command. Returns the exit code.
pub(crate) fn run(args: &ThinArgs) -> Result<u8, String> {
    match &args.command {
        ThinCommand::Check(args) => check(args),
        ThinCommand::Dump(args) => dump(args),
        ThinCommand::Restore(args) => restore(args),
        ThinCommand::Repair(args) => repair(args),
        ThinCommand::Delta(args) => {
            let view = args.snap.view(&args.device)?;
            let ids = (args.thin1, args.thin2);
            told(&args.device, delta::delta(&view, ids, args.verbose, stdout(), &mut Bar::new("delta", None, false)))
        }
        ThinCommand::Ls(args) => {
            let which = if args.metadata_snap { Which::Held } else { Which::Main };
            let view = view(&args.device, which)?;
            let mut bar = Bar::new("ls", None, false);
            told(&args.device, ls::ls(&view, &args.format, !args.no_headers, stdout(), &mut bar))
        }
        ThinCommand::Rmap(args) => {
            let view = view(&args.device, Which::Main)?;
            told(&args.device, rmap::rmap(&view, &args.region, stdout(), &mut Bar::new("rmap", None, false)))
        }
        ThinCommand::MetadataSize(args) => {
            let form = match args.numeric_only {
                None => Form::Full,
                Some(Numeric::Plain) => Form::Number,
                Some(Numeric::Short) => Form::Short,
                Some(Numeric::Long) => Form::Long,
            };
            println!("{}", size::metadata_size(args.block_size, args.pool_size, args.max_thins, args.unit, form)?);
            Ok(0)
        }
    }
}

fn stdout() -> BufWriter<io::StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}

fn view(device: &Path, which: Which) -> Result<View, String> {
    let access = if which == Which::Main { Access::Read } else { Access::ReadShared };
    View::open(open(device, access)?, which).map_err(|error| about(device, &error))
}

fn about(device: &Path, error: &Error) -> String {
    format!("{}: {error}", device.display())
}

/// An exit code, and a message that names the device.
fn told(device: &Path, result: Result<(), Error>) -> Result<u8, String> {
    match result {
        Ok(()) => Ok(0),
        // Whoever read has seen enough.
        Err(error) if error.is_broken_pipe() => Ok(0),
        Err(error @ Error::Thin(_)) => Err(format!("{}; `udm thin check` tells more", about(device, &error))),
        Err(error) => Err(about(device, &error)),
    }
}

/// What a check says, on stderr but for what scripts read.
struct Report {
    quiet: bool,
    bar: Bar,
}

impl Progress for Report {
    fn at(&mut self, done: u64, total: u64) {
        self.bar.at(done, total);
    }
}

impl Listener for Report {
    fn stage(&mut self, name: &str) {
        self.bar.clear();
        if !self.quiet {
            eprintln!("{name}");
        }
    }

    fn fault(&mut self, fault: &Fault) {
        self.bar.clear();
        if !self.quiet {
            eprintln!("  {fault}");
        }
    }

    fn head(&mut self, transaction: u64, free_metadata: u64) {
        if !self.quiet {
            println!("TRANSACTION_ID={transaction}\nMETADATA_FREE_BLOCKS={free_metadata}");
        }
    }
}

fn check(args: &CheckArgs) -> Result<u8, String> {
    let mends = args.auto_repair || args.clear_needs_check_flag;
    let which = if args.metadata_snap { Which::Held } else { Which::Main };
    let access = match (mends, args.metadata_snap) {
        (true, _) => Access::Write,
        (false, true) => Access::ReadShared,
        (false, false) => Access::Read,
    };
    let io = open(&args.device, access)?;
    let depth = match (args.super_block_only, args.skip_mappings) {
        (true, _) => Depth::Superblock,
        (false, true) => Depth::Devices,
        (false, false) => Depth::All,
    };
    let options = check::Options { which, depth, ignore_non_fatal: args.ignore_non_fatal_errors };
    let mut report = Report { quiet: args.quiet, bar: Bar::new("check", None, args.quiet) };
    let failed = |error: Error| about(&args.device, &error);
    let mut outcome = check::check(&io, options, &mut report).map_err(failed)?;
    if args.auto_repair && outcome.complete && !outcome.leaks.is_empty() {
        check::mend(&io, &outcome.leaks).map_err(failed)?;
        if !args.quiet {
            eprintln!("fixed metadata leaks");
        }
        outcome = check::check(&io, options, &mut report).map_err(failed)?;
    }
    let good = outcome.is_good(args.ignore_non_fatal_errors);
    if outcome.needs_check && !args.quiet {
        eprintln!("the superblock's needs_check flag is set");
    }
    if mends && good && outcome.complete && check::clear_needs_check(&io).map_err(failed)? && !args.quiet {
        eprintln!("cleared needs_check flag");
    }
    Ok(u8::from(!good))
}

fn dump(args: &DumpArgs) -> Result<u8, String> {
    let out: Box<dyn Write> = match &args.output {
        None => Box::new(stdout()),
        Some(path) => {
            let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Box::new(BufWriter::with_capacity(1 << 16, file))
        }
    };
    let mut out: Box<dyn Emit> = match args.format {
        Format::Xml => Box::new(Xml(out)),
        Format::HumanReadable => Box::new(Human(out)),
    };
    let mut bar = Bar::new("dump", None, false);
    if args.repair {
        let io = open(&args.device, Access::Read)?;
        return match repair::dump(&io, args.overrides.get(), &mut *out, &mut bar) {
            Ok(lost) => {
                drop(bar);
                tell_lost(&lost);
                Ok(0)
            }
            Err(error) => told(&args.device, Err(error)),
        };
    }
    let view = args.snap.view(&args.device)?;
    let options = dump::Options { devices: args.dev_id.clone(), skip_mappings: args.skip_mappings };
    let view = view.with(args.overrides.get());
    let done = dump::dump(&view, &options, &mut *out, &mut bar);
    drop(bar);
    match done {
        Err(error @ Error::Thin(_)) => {
            let device = args.device.display();
            Err(format!("{device}: {error}; `udm thin check` tells more, --repair dumps what is left"))
        }
        done => told(&args.device, done),
    }
}

fn tell_lost(lost: &[udm_pdata::Error]) {
    for error in lost {
        eprintln!("left out: {error}");
    }
}

fn restore(args: &RestoreArgs) -> Result<u8, String> {
    let wrong = |error: io::Error| format!("{}: {error}", args.input.display());
    let file = File::open(&args.input).map_err(wrong)?;
    let bytes = file.metadata().map_err(wrong)?.len();
    let mut input = BufReader::with_capacity(1 << 16, file);
    let io = open(&args.output, Access::Write)?;
    let mut bar = Bar::new("restore", Some(bytes), args.quiet);
    restore::restore(&io, &mut input, args.overrides.get(), &mut bar).map_err(|error| match error {
        Error::Xml { .. } => about(&args.input, &error),
        error => about(&args.output, &error),
    })?;
    Ok(0)
}

fn repair(args: &RepairArgs) -> Result<u8, String> {
    let from = open(&args.input, Access::Read)?;
    // A device that is both is refused here: it is locked.
    let to = open(&args.output, Access::Write)?;
    let mut bar = Bar::new("repair", None, false);
    let repaired = repair::repair(&from, &to, args.overrides.get(), &mut bar);
    drop(bar);
    let (restored, lost) = repaired.map_err(|error| about(&args.input, &error))?;
    tell_lost(&lost);
    eprintln!("{} devices with {} mappings", restored.devices, restored.mappings);
    Ok(0)
}
