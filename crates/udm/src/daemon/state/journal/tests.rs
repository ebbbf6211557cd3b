use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A file: what is in it, and what of that is durable.
#[derive(Clone, Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
}

type Inode = usize;

/// A disk in memory that fails, or loses its power, at a step of one's choice. Each byte written is a step, and each
/// other call.
#[derive(Clone, Default)]
struct Model {
    files: Vec<Content>,
    names: BTreeMap<String, Inode>,
    durable_names: BTreeMap<String, Inode>,
    steps: u64,
    /// At this step the power goes: nothing more happens.
    cut: Option<u64>,
    /// From this step on, so many calls fail.
    fails: Option<(u64, u64)>,
}

#[derive(Clone, Default)]
struct ModelDisk(Rc<RefCell<Model>>);

impl Model {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        if self.cut.is_some_and(|cut| self.steps > cut) {
            return Err(io::Error::other("the power is off"));
        }
        if let Some((from, count)) = self.fails
            && self.steps > from
            && count > 0
        {
            self.fails = Some((from, count - 1));
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }
}

impl Disk for ModelDisk {
    type File = Inode;

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let model = self.0.borrow();
        Ok(model.names.get(name).map(|inode| model.files[*inode].now.clone()))
    }

    fn create(&self, name: &str) -> io::Result<Inode> {
        let mut model = self.0.borrow_mut();
        model.step()?;
        let inode = match model.names.get(name) {
            Some(inode) => *inode,
            None => {
                model.files.push(Content::default());
                model.files.len() - 1
            }
        };
        model.files[inode].now.clear();
        model.names.insert(name.to_owned(), inode);
        Ok(inode)
    }

    fn write(&self, file: &Inode, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut model = self.0.borrow_mut();
        for (index, byte) in bytes.iter().enumerate() {
            model.step()?;
            let (content, at) = (&mut model.files[*file].now, at as usize + index);
            content.resize(content.len().max(at + 1), 0);
            content[at] = *byte;
        }
        Ok(())
    }

    fn reserve(&self, _: &Inode, _: u64, _: u64) -> io::Result<()> {
        self.0.borrow_mut().step()
    }

    fn truncate(&self, file: &Inode, len: u64) -> io::Result<()> {
        let mut model = self.0.borrow_mut();
        model.step()?;
        model.files[*file].now.truncate(len as usize);
        Ok(())
    }

    fn sync(&self, file: &Inode) -> io::Result<()> {
        let mut model = self.0.borrow_mut();
        model.step()?;
        let content = &mut model.files[*file];
        content.durable = content.now.clone();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut model = self.0.borrow_mut();
        model.step()?;
        let inode = model.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        model.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut model = self.0.borrow_mut();
        model.step()?;
        model.names.remove(name);
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut model = self.0.borrow_mut();
        model.step()?;
        model.durable_names = model.names.clone();
        Ok(())
    }
}

/// What a power cut may leave: of names and of data either all that happened, or what was synced; of a tail half.
fn after_power_cut(model: &Model) -> Vec<ModelDisk> {
    let mut all = Vec::new();
    for names in [&model.names, &model.durable_names] {
        for data in 0..3 {
            let mut left = Model { names: names.clone(), durable_names: names.clone(), ..Model::default() };
            for content in &model.files {
                let mut now = match data {
                    0 => content.now.clone(),
                    _ => content.durable.clone(),
                };
                if data == 2 && content.now.starts_with(&content.durable) {
                    // The length came through, the data did not.
                    now.resize(content.now.len(), 0);
                }
                left.files.push(Content { durable: now.clone(), now });
            }
            all.push(ModelDisk(Rc::new(RefCell::new(left))));
        }
    }
    all
}

/// A state that counts: each record adds a number.
fn recover(disk: &ModelDisk) -> Vec<u32> {
    let found = read(disk).unwrap();
    let Some(checkpoint) = found.checkpoint else { return Vec::new() };
    let text = String::from_utf8(checkpoint).unwrap();
    let numbers = text.lines().map(str::to_owned).chain(found.records);
    numbers.map(|number| number.parse().unwrap()).collect()
}

fn text(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().map(|number| format!("{number}\n")).collect::<String>().into_bytes()
}

/// Records numbers as the daemon does: what cannot be appended is tried as a checkpoint. Returns those that were
/// acknowledged.
fn run(disk: &ModelDisk, mut known: Vec<u32>, numbers: std::ops::Range<u32>) -> Vec<u32> {
    let mut journal = Journal::new(disk.clone());
    let mut acknowledged = known.clone();
    for number in numbers {
        known.push(number);
        let done = match journal.has_log() && known.len() == acknowledged.len() + 1 {
            true => journal.append(&[number.to_string()]).or_else(|_| journal.checkpoint(&text(&known))),
            false => journal.checkpoint(&text(&known)),
        };
        if done.is_ok() {
            acknowledged = known.clone();
        }
        if number % 4 == 3 {
            let _ = journal.checkpoint(&text(&known)).map(|()| acknowledged = known.clone());
        }
    }
    acknowledged
}

#[test]
fn what_is_acknowledged_survives_a_cut_at_every_step() {
    let whole = ModelDisk::default();
    assert_eq!(run(&whole, Vec::new(), 0..10), (0..10).collect::<Vec<_>>());
    let steps = whole.0.borrow().steps;
    assert!(steps > 200, "{steps}");
    for cut in 0..=steps {
        let disk = ModelDisk::default();
        disk.0.borrow_mut().cut = Some(cut);
        let acknowledged = run(&disk, Vec::new(), 0..10);
        for left in after_power_cut(&disk.0.borrow()) {
            let found = recover(&left);
            let all: Vec<u32> = (0..found.len() as u32).collect();
            assert_eq!(found, all, "cut at step {cut}: what is there is there in order");
            // The one under way, and those that a checkpoint had in it beside it, may be there or not.
            assert!(found.starts_with(&acknowledged), "cut at step {cut}: {found:?} lacks some of {acknowledged:?}");
            // The next daemon goes on, and what it is told is kept as well.
            let more = run(&left, found.clone(), 10..14);
            assert_eq!(recover(&left), more, "after a cut at step {cut}");
            assert_eq!(more.len(), found.len() + 4);
        }
    }
}

/// A disk that is full, or broken, for some calls: what is acknowledged is there, then and after a cut at the end.
#[test]
fn what_fails_is_not_acknowledged_and_harms_nothing() {
    let whole = ModelDisk::default();
    run(&whole, Vec::new(), 0..10);
    let steps = whole.0.borrow().steps;
    for from in 0..steps {
        for count in [1, 2, 3, 5, 8] {
            let disk = ModelDisk::default();
            disk.0.borrow_mut().fails = Some((from, count));
            let acknowledged = run(&disk, Vec::new(), 0..10);
            for left in after_power_cut(&disk.0.borrow()) {
                let found = recover(&left);
                assert!(found.starts_with(&acknowledged), "{count} failures from step {from}: {found:?}");
            }
        }
    }
}

#[test]
fn a_log_that_is_cut_or_damaged_anywhere_gives_what_is_before() {
    let disk = ModelDisk::default();
    let mut journal = Journal::new(disk.clone());
    journal.checkpoint(&text(&[0])).unwrap();
    let record = |number: u32| format!("{{\"number\":{number}}}");
    (1..6).for_each(|number| journal.append(&[record(number)]).unwrap());
    let log = disk.read(LOG).unwrap().unwrap();
    let whole: Vec<String> = (1..6).map(record).collect();
    let check = |bytes: Vec<u8>, what: &str| {
        let (found, left_out) = records(&bytes, &text(&[0]));
        assert!(whole.starts_with(&found), "{what}: {found:?}");
        let lines = log.split_inclusive(|byte| *byte == b'\n').scan(0, |sum, line| {
            *sum += line.len();
            Some(*sum)
        });
        let same = bytes.iter().zip(&log).take_while(|(a, b)| a == b).count();
        let good = lines.skip(1).filter(|end| *end <= same).count();
        assert_eq!(found.len(), good, "{what}");
        assert_eq!(
            left_out.is_some(),
            bytes.len() > log.len() || bytes[..] != log[..] && !is_end(&log, bytes.len()),
            "{what}"
        );
    };
    fn is_end(log: &[u8], at: usize) -> bool {
        at > 0 && log.get(at - 1) == Some(&b'\n')
    }
    check(log.clone(), "whole");
    (0..log.len()).for_each(|cut| check(log[..cut].to_vec(), &format!("cut after {cut} bytes")));
    check([&log[..], &[0; 100]].concat(), "zeroes behind");
    for at in 0..log.len() {
        let mut bytes = log.clone();
        bytes[at] ^= 1;
        let (found, left_out) = records(&bytes, &text(&[0]));
        assert!(whole.starts_with(&found) && found.len() < whole.len() && left_out.is_some(), "byte {at}");
    }
    // One of another checkpoint says nothing of this one.
    assert!(records(&log, &text(&[1])).0.is_empty());
}

#[test]
fn a_record_costs_what_it_holds() {
    let disk = ModelDisk::default();
    let mut journal = Journal::new(disk.clone());
    let mut known = Vec::new();
    journal.checkpoint(&text(&known)).unwrap();
    let record = "1".repeat(9);
    for number in 0..20_000 {
        journal.append(std::slice::from_ref(&record)).unwrap();
        known.push(111_111_111 + number);
        if journal.is_due() {
            journal.checkpoint(&text(&known)).unwrap();
        }
    }
    // A line of the log has 19 bytes, and of a checkpoint 10; three calls go with each record at most.
    let steps = disk.0.borrow().steps;
    assert!(steps < 20_000 * (19 + 3 + 2 * 10 + 3), "{steps}");
}

#[test]
fn room_is_asked_for_before_it_is_needed() {
    let disk = ModelDisk::default();
    let mut journal = Journal::new(disk.clone());
    journal.checkpoint(b"").unwrap();
    journal.reserve(100).unwrap();
    let before = disk.0.borrow().steps;
    journal.reserve(100).unwrap();
    assert_eq!(disk.0.borrow().steps, before, "there is room already");
    disk.0.borrow_mut().fails = Some((0, 1));
    let failed = journal.reserve(ROOM * 2).unwrap_err();
    assert_eq!((failed.file, failed.error.kind()), (LOG, io::ErrorKind::StorageFull));
    journal.append(&["1".into()]).unwrap();
}
