//! `nbdcopy`: an image in and out again.

use super::{fails, run, same};
use crate::disks::write_image;
use crate::kinds::{Nature, SIZE, Subject};

pub(super) fn check(subject: &Subject) {
    let disk = &subject.lab.disk;
    let (image, copy) = (disk.path("image"), disk.path("copy"));
    write_image(&image, SIZE as usize);
    let (from, to, uri) = (image.to_str().expect("text"), copy.to_str().expect("text"), subject.uri());
    let copy_in = ["--flush", from, &uri];
    match subject.nature {
        Nature::Keeps => {
            run("nbdcopy", &copy_in);
            run("nbdcopy", &[&uri, to]);
            assert!(same(&image, &copy), "what comes out is what went in");
            // Over what is there, in another manner; and holes are punched into what was data.
            write_image(&image, SIZE as usize / 2);
            std::fs::File::options().append(true).open(&image).and_then(|f| f.set_len(SIZE)).expect("room");
            run("nbdcopy", &["--synchronous", "--allocated", from, &uri]);
            run("nbdcopy", &["--connections=1", "--requests=100", &uri, to]);
            assert!(same(&image, &copy), "what comes out is what went in the second time");
        }
        Nature::Zeroes => {
            run("nbdcopy", &copy_in);
            run("nbdcopy", &[&uri, to]);
            assert!(std::fs::read(&copy).expect("a copy").iter().all(|byte| *byte == 0));
        }
        Nature::Fails => {
            fails("nbdcopy", &copy_in, &["Input/output error"]);
            fails("nbdcopy", &[&uri, to], &["Input/output error"]);
        }
        Nature::ReadOnly => {
            fails("nbdcopy", &copy_in, &["read-only", "not permitted"]);
            run("nbdcopy", &[&uri, to]);
            assert!(same(&image, &copy), "the file beneath is what is read");
        }
    }
}
