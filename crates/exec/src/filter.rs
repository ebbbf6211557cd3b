//! The filter: which system calls the supervisor is asked about.
//!
//! - `ioctl` with the type of device mapper (0xfd), and those of `/dev/loop-control`
//! - `open` and `openat` with `O_RDWR` and nothing else but `O_CLOEXEC` and `O_LARGEFILE`: how every program opens
//!   `/dev/mapper/control`. Opens that only read, that make files or append are not asked about
//! - `add_key`, since keys of the kind `logon` are read by the kernel only
//!
//! It runs at every system call (`kernel/seccomp.c`), so the common ones leave it after a handful of instructions.
//! Programs of 32 bits have numbers of their own, told apart by the architecture of the call.

use crate::sys::Instruction;

/// `struct seccomp_data` (`include/uapi/linux/seccomp.h`, 6.12): where its words are.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// The low half of an argument. Every architecture here is little endian.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// `SECCOMP_RET_USER_NOTIF` and `SECCOMP_RET_ALLOW`.
const ASK: u32 = 0x7fc0_0000;
const ALLOW: u32 = 0x7fff_0000;

/// The ioctl type of device mapper, in its place (`DM_IOCTL`, `include/uapi/linux/dm-ioctl.h`).
const DM_TYPE: u32 = 0xfd00;
const TYPE_MASK: u32 = 0xff00;
/// `LOOP_CTL_ADD`, `LOOP_CTL_REMOVE`, `LOOP_CTL_GET_FREE` (`include/uapi/linux/loop.h`), but for the last two bits.
const LOOP_CONTROL: u32 = 0x4c80;
const LOOP_CONTROL_MASK: u32 = !3;

/// How a kind of program makes system calls.
#[derive(Clone, Copy, Debug)]
pub struct Abi {
    /// `AUDIT_ARCH_*` (`include/uapi/linux/audit.h`).
    pub arch: u32,
    /// `ioctl`
    pub ioctl: u32,
    /// `openat`
    pub openat: u32,
    /// `open`, where there is one.
    pub open: Option<u32>,
    /// `add_key`
    pub add_key: u32,
    /// `O_LARGEFILE`, as a program of this kind has it.
    pub large_file: u32,
}

/// x86-64 (`arch/x86/entry/syscalls/syscall_64.tbl`, 6.12).
const X86_64: Abi =
    Abi { arch: 0xc000_003e, ioctl: 16, openat: 257, open: Some(2), add_key: 248, large_file: 0o100_000 };
/// i386 (`arch/x86/entry/syscalls/syscall_32.tbl`, 6.12).
const I386: Abi = Abi { arch: 0x4000_0003, ioctl: 54, openat: 295, open: Some(5), add_key: 286, large_file: 0o100_000 };
/// 64-bit ARM (`scripts/syscall.tbl`, 6.12). Its `O_LARGEFILE` is another than x86's.
const AARCH64: Abi = Abi { arch: 0xc000_00b7, ioctl: 29, openat: 56, open: None, add_key: 217, large_file: 0o400_000 };
/// 32-bit ARM (`arch/arm/tools/syscall.tbl`, 6.12).
const ARM: Abi = Abi { arch: 0x4000_0028, ioctl: 54, openat: 322, open: Some(5), add_key: 309, large_file: 0o400_000 };

/// The kinds of programs that this machine runs, the most frequent first.
pub const ABIS: &[Abi] = if cfg!(target_arch = "aarch64") { &[AARCH64, ARM] } else { &[X86_64, I386] };

/// x32, which has x86-64's architecture and this bit in its numbers (`__X32_SYSCALL_BIT`), and its own `ioctl`.
const X32_BIT: u32 = 0x4000_0000;
const X32_IOCTL: u32 = X32_BIT + 514;

/// What a system call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `ioctl(fd, command, address)`
    Ioctl,
    /// `openat(directory, path, flags)`
    OpenAt,
    /// `open(path, flags)`
    Open,
    /// `add_key(type, description, payload, length, keyring)`
    AddKey,
}

impl Abi {
    /// That of a call, by its architecture.
    pub fn of(arch: u32) -> Option<&'static Self> {
        ABIS.iter().find(|abi| abi.arch == arch)
    }

    /// What the call of that number is, if it is one that is asked about.
    pub fn call(&self, number: u32) -> Option<Call> {
        match number {
            n if n == self.ioctl || self.arch == X86_64.arch && n == X32_IOCTL => Some(Call::Ioctl),
            n if n & !X32_BIT == self.openat => Some(Call::OpenAt),
            n if Some(n & !X32_BIT) == self.open => Some(Call::Open),
            n if n & !X32_BIT == self.add_key => Some(Call::AddKey),
            _ => None,
        }
    }
}

/// Codes of instructions (`include/uapi/linux/bpf_common.h`): load a word, jump if equal, and, return.
const LD: u16 = 0x20;
const JEQ: u16 = 0x15;
const AND: u16 = 0x54;
const RET: u16 = 0x06;
const JA: u16 = 0x05;

/// A place in the program that jumps lead to, always forward.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Label(usize);

/// A program that is being written.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    /// Instructions that jump to a label: on yes, on no or always.
    jumps: Vec<(usize, Label, Leg)>,
    places: Vec<Option<usize>>,
}

#[derive(Clone, Copy)]
enum Leg {
    Yes,
    No,
    Always,
}

impl Assembler {
    fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    fn here(&mut self, label: Label) {
        self.places[label.0] = Some(self.code.len());
    }

    fn push(&mut self, code: u16, k: u32) {
        self.code.push(Instruction { code, jt: 0, jf: 0, k });
    }

    fn load(&mut self, offset: u32) {
        self.push(LD, offset);
    }

    fn if_equal(&mut self, k: u32, then: Label) {
        self.jumps.push((self.code.len(), then, Leg::Yes));
        self.push(JEQ, k);
    }

    fn unless_equal(&mut self, k: u32, then: Label) {
        self.jumps.push((self.code.len(), then, Leg::No));
        self.push(JEQ, k);
    }

    fn go(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to, Leg::Always));
        self.push(JA, 0);
    }

    /// The program, with its jumps filled in.
    ///
    /// # Panics
    /// When one leads nowhere, back, or too far: a mistake in this file, which its tests find.
    fn finish(mut self) -> Vec<Instruction> {
        for (at, label, leg) in self.jumps {
            let to = self.places[label.0].expect("the label has a place");
            let far = to.checked_sub(at + 1).expect("jumps lead forward");
            let near = || u8::try_from(far).expect("a conditional jump reaches 255 instructions");
            match leg {
                Leg::Yes => self.code[at].jt = near(),
                Leg::No => self.code[at].jf = near(),
                Leg::Always => self.code[at].k = far as u32,
            }
        }
        self.code
    }
}

/// The filter of this machine.
pub(crate) fn program() -> Vec<Instruction> {
    let mut a = Assembler::default();
    let (ask, allow) = (a.label(), a.label());
    let sections: Vec<_> = ABIS.iter().map(|abi| (abi, a.label())).collect();
    a.load(ARCH);
    for (abi, section) in &sections {
        a.if_equal(abi.arch, *section);
    }
    a.go(allow);
    for (abi, section) in sections {
        a.here(section);
        let (ioctl, openat, flags) = (a.label(), a.label(), a.label());
        let open = abi.open.map(|number| (number, a.label()));
        a.load(NUMBER);
        a.if_equal(abi.ioctl, ioctl);
        if abi.arch == X86_64.arch {
            a.if_equal(X32_IOCTL, ioctl);
            a.push(AND, !X32_BIT);
        }
        a.if_equal(abi.openat, openat);
        if let Some((number, open)) = open {
            a.if_equal(number, open);
        }
        a.if_equal(abi.add_key, ask);
        a.go(allow);
        a.here(ioctl);
        a.load(argument(1));
        a.push(AND, TYPE_MASK);
        a.if_equal(DM_TYPE, ask);
        a.load(argument(1));
        a.push(AND, LOOP_CONTROL_MASK);
        a.unless_equal(LOOP_CONTROL, allow);
        a.go(ask);
        a.here(openat);
        a.load(argument(2));
        if let Some((_, open)) = open {
            a.go(flags);
            a.here(open);
            a.load(argument(1));
        }
        a.here(flags);
        a.push(AND, !(abi.large_file | libc::O_CLOEXEC as u32));
        a.unless_equal(libc::O_RDWR as u32, allow);
        a.go(ask);
    }
    a.here(allow);
    a.push(RET, ALLOW);
    a.here(ask);
    a.push(RET, ASK);
    a.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would do with the call.
    fn run(program: &[Instruction], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_ne_bytes());
        data.extend(arch.to_ne_bytes());
        data.extend(0u64.to_ne_bytes());
        args.iter().for_each(|arg| data.extend(arg.to_ne_bytes()));
        let (mut at, mut accumulator) = (0, 0u32);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LD => accumulator = u32::from_ne_bytes(data[k as usize..][..4].try_into().unwrap()),
                AND => accumulator &= k,
                JA => at += k as usize,
                JEQ => at += usize::from(if accumulator == k { jt } else { jf }),
                RET => return k,
                other => panic!("no instruction has the code {other:#x}"),
            }
        }
    }

    #[test]
    fn what_is_asked_about() {
        let program = program();
        const RDWR: u64 = libc::O_RDWR as u64;
        const CLOEXEC: u64 = libc::O_CLOEXEC as u64;
        for abi in ABIS {
            let check = |number: u32, args: [u64; 6], expect: u32| {
                assert_eq!(run(&program, abi.arch, number, args), expect, "{number} {args:x?} of {:#x}", abi.arch);
            };
            let ioctl = |command: u64, expect| check(abi.ioctl, [3, command, 0, 0, 0, 0], expect);
            ioctl(0xc138_fd00, ASK);
            ioctl(0xffff_ffff_c138_fd11, ASK);
            ioctl(0x0000_fd00, ASK);
            ioctl(0x4c80, ASK);
            ioctl(0x4c82, ASK);
            ioctl(0x4c0a, ALLOW);
            ioctl(0x5401, ALLOW);
            let openat = |flags: u64, expect| check(abi.openat, [0, 1, flags, 0, 0, 0], expect);
            let large = u64::from(abi.large_file);
            for (flags, expect) in [
                (RDWR, ASK),
                (RDWR | CLOEXEC, ASK),
                (RDWR | large, ASK),
                (RDWR | large | CLOEXEC, ASK),
                (0, ALLOW),
                (1, ALLOW),
                (RDWR | libc::O_CREAT as u64, ALLOW),
                (RDWR | libc::O_DIRECT as u64, ALLOW),
                (RDWR | libc::O_NONBLOCK as u64, ALLOW),
                (RDWR | libc::O_EXCL as u64, ALLOW),
            ] {
                openat(flags, expect);
                if let Some(open) = abi.open {
                    check(open, [1, flags, 0, 0, 0, 0], expect);
                }
            }
            check(abi.add_key, [0; 6], ASK);
            check(9, [0; 6], ALLOW);
            check(231, [0; 6], ALLOW);
        }
        assert_eq!(run(&program, 0x1234, ABIS[0].ioctl, [0, 0xfd00, 0, 0, 0, 0]), ALLOW, "of another architecture");
        if cfg!(target_arch = "x86_64") {
            assert_eq!(run(&program, X86_64.arch, X32_IOCTL, [0, 0xc138_fd00, 0, 0, 0, 0]), ASK, "x32");
            assert_eq!(run(&program, X86_64.arch, X32_BIT + 257, [0, 0, RDWR, 0, 0, 0]), ASK, "x32");
        }
    }

    #[test]
    fn numbers_are_what_the_libc_says() {
        let abi = &ABIS[0];
        assert_eq!(i64::from(abi.ioctl), libc::SYS_ioctl);
        assert_eq!(i64::from(abi.openat), libc::SYS_openat);
        assert_eq!(i64::from(abi.add_key), libc::SYS_add_key);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(abi.open.map(i64::from), Some(libc::SYS_open));
        assert_eq!(abi.call(libc::SYS_ioctl as u32), Some(Call::Ioctl));
        assert_eq!(abi.call(libc::SYS_read as u32), None);
    }
}
