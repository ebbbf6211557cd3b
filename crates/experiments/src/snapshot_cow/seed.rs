//! What the seed's authors measured, in MB/s.

use super::modelled::{Place, Subject};
use super::workload::Kind;
use super::{Policy, Run};

const MIB: u64 = 1 << 20;

/// The figure of the same experiment, where they did it. In 2007: `dd bs=1M count=1000`, without fsync, by chunk and
/// disk. In 2008: `dd bs=4096`, with and without fsync, on another and faster disk, with the chunks that lvm2 gave
/// then.
pub(super) fn figure(run: &Run) -> Option<f64> {
    let case = &run.case;
    if case.job.order != super::workload::Order::Sequential
        || case.subject == Subject::Snapshot
        || case.policy == Policy::Udm
    {
        return None;
    }
    match case.job.size {
        MIB if case.job.total == 1000 * MIB && !run.fsync && case.job.kind == Kind::Create => Some(of_2007(run)?),
        4096 => of_2008(run),
        _ => None,
    }
}

fn of_2007(run: &Run) -> Option<f64> {
    let case = &run.case;
    if case.subject == Subject::Plain {
        return Some(45.4);
    }
    Some(match (case.place, case.chunk, case.policy) {
        (Place::SameDisk, 8192, Policy::Tail) => 1.1,
        (Place::SameDisk, 8192, Policy::Head) => 9.6,
        (Place::SameDisk, 524_288, Policy::Tail) => 4.0,
        (Place::SameDisk, 524_288, Policy::Head) => 8.4,
        (Place::OwnDisk, 8192, Policy::Tail) => 1.2,
        (Place::OwnDisk, 8192, Policy::Head) => 17.2,
        (Place::OwnDisk, 524_288, Policy::Tail) => 5.6,
        (Place::OwnDisk, 524_288, Policy::Head) => 14.5,
        _ => return None,
    })
}

fn of_2008(run: &Run) -> Option<f64> {
    let case = &run.case;
    let column = [10, 100, 1000].iter().position(|mib| case.job.total == mib * MIB)?;
    let is_origin = case.subject == Subject::Origin && case.place == Place::SameDisk && case.chunk == 8192;
    let rows = match (case.subject, case.policy) {
        (Subject::Plain, _) => {
            [[555.03, 608.98, 123.29], [114.27, 72.78, 76.65], [152.34, 1267.27, 124.04], [130.56, 77.81, 77.84]]
        }
        (_, Policy::Tail) if is_origin => {
            [[511.46, 610.72, 11.81], [7.10, 6.77, 8.13], [431.63, 917.41, 12.75], [7.79, 7.43, 8.12]]
        }
        (_, Policy::Head) if is_origin => {
            [[537.06, 589.44, 46.21], [31.63, 29.19, 29.23], [487.59, 897.65, 37.76], [34.12, 30.07, 26.85]]
        }
        _ => return None,
    };
    let row = usize::from(case.job.kind == Kind::Update) * 2 + usize::from(run.fsync);
    Some(rows[row][column])
}
