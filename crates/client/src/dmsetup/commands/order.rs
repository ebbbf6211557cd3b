//! In which order the devices of a concise specification can be made: each after those beneath it. `table --concise`
//! lists devices by name, as dmsetup does, so what it prints may have a device before what it stands on.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use udm_base::DevT;
use udm_base::concise::ConciseDevice;

/// The kernel's block devices have major numbers below this; a mapped device's is not among them.
const HOST_MAJORS: u32 = 512;

/// Indices of `devices`: as given, except that a device comes after those of the same specification that its table
/// names. Devices that stand on each other in a circle come last; making them fails with the daemon's words.
pub(super) fn order(devices: &[ConciseDevice]) -> Vec<usize> {
    let (mut by_name, mut by_minor) = (HashMap::new(), HashMap::new());
    for (i, device) in devices.iter().enumerate() {
        by_name.entry(device.name.as_str()).or_insert(i);
        if let Ok(minor) = device.minor.parse::<u32>() {
            by_minor.entry(minor).or_insert(i);
        }
    }
    let find = |word: &str| match word.strip_prefix("/dev/mapper/") {
        Some(name) => by_name.get(name).copied(),
        None => {
            let number: DevT = word.parse().ok()?;
            by_minor.get(&number.minor).copied().filter(|_| number.major >= HOST_MAJORS)
        }
    };
    let mut above = vec![Vec::new(); devices.len()];
    let mut beneath = vec![0_usize; devices.len()];
    for (i, device) in devices.iter().enumerate() {
        for below in device.table.split_whitespace().filter_map(find).filter(|below| *below != i) {
            above[below].push(i);
            beneath[i] += 1;
        }
    }
    let mut ready: BinaryHeap<_> = (0..devices.len()).filter(|i| beneath[*i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(devices.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for above in &above[i] {
            beneath[*above] -= 1;
            if beneath[*above] == 0 {
                ready.push(Reverse(*above));
            }
        }
    }
    order.extend((0..devices.len()).filter(|i| beneath[*i] > 0));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_base::concise::parse_concise;

    #[test]
    fn a_device_comes_after_those_beneath() {
        let check = |text: &str, expect: &[&str]| {
            let (devices, result) = parse_concise(text);
            assert_eq!(result, Ok(()), "{text}");
            let names: Vec<_> = order(&devices).into_iter().map(|i| devices[i].name.as_str()).collect();
            assert_eq!(names, expect, "{text}");
        };
        check("b,,,,0 1 zero;a,,,,0 1 zero", &["b", "a"]);
        check("d,,2,,0 4 striped 2 1 600:0 0 600:1 0;f,,1,,0 2 ram;s,,0,,0 2 ram", &["f", "s", "d"]);
        check("a,,,,0 1 linear /dev/mapper/b 0,1 1 linear /dev/mapper/b 0;b,,,,0 1 ram", &["b", "a"]);
        // A host's device of the same minor number is no reason to wait.
        check("a,,,,0 1 linear 8:3 0;b,,3,,0 1 ram", &["a", "b"]);
        check("a,,,,0 1 linear /dev/mapper/b 0;b,,,,0 1 linear /dev/mapper/a 0;c,,,,0 1 ram", &["c", "a", "b"]);
        check("a,,,,0 1 linear /dev/mapper/a 0", &["a"]);
    }
}
