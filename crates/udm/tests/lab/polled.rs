//! Polled I/O where there is something to poll: emulated NVMe with poll queues, and null_blk, beneath stacks of udm's.
//!
//! The guest runs this machine's udm. What the kernel says of it is looked at: the ring was made with
//! IORING_SETUP_IOPOLL, the disks' interrupts stand still while their I/Os are counted, and come again when polling is
//! switched off. The data is verified. Two of the cases are known to have gone wrong for the kernel's own device
//! mapper: a striped one over NVMe oopsed, and one over null_blk with fewer tags than there were requests failed with
//! EAGAIN.

use crate::common::UDM;
use crate::guest;
use std::ffi::OsStr;

const SCRIPT: &str = r#"
udm=$1
modprobe -r nvme 2>/dev/null || true
modprobe nvme poll_queues=2
modprobe null_blk nr_devices=0
null_block tags 64 submit_queues=1 poll_queues=1 hw_queue_depth=64 irqmode=1 memory_backed=1
for i in 0 1 2; do for wait in 1 2 3 4 5; do [ -b /dev/nvme${i}n1 ] || sleep 1; done; done

# Of every queue but those for administration.
interrupts() { awk '/nvme/ && !/q0$/ { for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) n += $i } END { print n + 0 }' /proc/interrupts; }
ios() { awk '{ n += $1 + $5 } END { print n }' /sys/block/nvme*n1/stat /sys/block/tags/stat; }

# measure NAME CONCISE OPTION...: what one run cost, on a line.
measure() {
    local name=$1 concise=$2 interrupts ios polled
    shift 2
    interrupts=$(interrupts) ios=$(ios)
    # The options name sizes that make a run short under emulation.
    strace -f -e trace=io_uring_setup -o trace chroot /host "$udm" bench --concise "$concise" --device d --rw=randrw \
        --size=1m --number-ios=300 --verify=pattern --completion=poll --json "$@" > out.json
    # The first ring that is polled only finds out whether one can be.
    polled=$(grep -c IORING_SETUP_IOPOLL trace || true)
    echo "measured $name interrupts=$(($(interrupts) - interrupts)) ios=$(($(ios) - ios)) rings=$polled" \
        $(awk -F '[:,]' '/"(fast|sub|default)"/ { gsub(/[" ]/, ""); print $1 "=" $2 }' out.json)
}

one='d,,,,0 32768 linear /dev/nvme0n1 0'
three='d,,,,0 98304 striped 3 8 /dev/nvme0n1 0 /dev/nvme1n1 0 /dev/nvme2n1 0'
measure linear "$one" --bs=4k --iodepth=8
measure switched-off "$one" --bs=4k --iodepth=8 --set d:io_poll=0
measure striped "$three" --bs=12k --iodepth=8
measure few-tags 'd,,,,0 65536 linear /dev/tags 0' --bs=4k --iodepth=128
measure mixed 'm,,,,0 8192 ram;d,,,,0 8192 linear /dev/mapper/m 0,8192 8192 linear /dev/nvme0n1 0' --bs=4k --iodepth=8 --size=8m
"#;

/// What was measured under a name: the number called `key`.
fn number(said: &str, name: &str, key: &str) -> u64 {
    let line = said.lines().find(|line| line.starts_with(&format!("measured {name} ")));
    let word = line.and_then(|line| line.split(' ').find_map(|word| word.strip_prefix(&format!("{key}="))));
    word.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {key} of {name} in: {said}"))
}

pub(crate) fn disks_interrupt_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-r", "-n", "64M", "-n", "64M", "-n", "64M"].map(OsStr::new);
    let said = guest::boot(dir.path(), "polled", options, SCRIPT, &[UDM]);
    println!("{said}");
    let of = |name, key| number(&said, name, key);
    for name in ["linear", "striped", "mixed"] {
        assert_eq!(of(name, "interrupts"), 0, "{name}: {said}");
    }
    for (name, path, rings) in
        [("linear", "fast", 2), ("striped", "sub", 6), ("few-tags", "fast", 2), ("mixed", "fast", 2)]
    {
        assert!(of(name, "ios") >= 100, "{name}: {said}");
        assert!(of(name, path) >= 300, "{name}: {said}");
        assert!(of(name, "rings") >= rings, "{name}: {said}");
    }
    assert!(of("switched-off", "interrupts") >= 100, "{said}");
    assert_eq!(of("switched-off", "fast"), 0, "{said}");
    assert_eq!(of("switched-off", "rings"), 1, "only the one that finds out: {said}");
}
