//! Every kind of device under every program.

use crate::kinds::{self, Kind};
use crate::programs::PROGRAMS;

#[track_caller]
fn check(kind: Kind) {
    for program in PROGRAMS {
        if !(program.installed)() {
            continue;
        }
        // A device for each: what one program leaves must not help the next.
        let Some(subject) = kind() else { return };
        (program.check)(&subject);
        let open = || subject.lab.udm.number("dev", "open");
        crate::udm::wait_until("every client is noticed to have gone", || open() == 0);
        subject.lab.udm.ok(&["remove", "dev"]);
    }
}

/// One test for each kind, so that they run side by side and fail by name.
macro_rules! matrix {
    ($($kind:ident)*) => {
        $(#[test]
        fn $kind() {
            check(kinds::$kind);
        })*
    };
}

matrix! {
    linear_over_a_file
    linear_over_a_file_of_tmpfs
    striped_over_loop_and_ram
    zero
    error
    ram
    loop_of_two_file_systems
    linear_over_null_with_memory
    a_stack
    linear_over_another_udm
    linear_over_nbdkit
    read_only
}
