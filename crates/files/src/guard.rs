//! Copies that survive their memory: a fault in a mapping whose file was cut off below is an answer, not a signal.
//!
//! SIGBUS is handled for the whole process, once. The handler claims faults whose instruction lies in the copy routine,
//! and sends that routine to its error return, and faults in memory that another process shares (`foreign`). Every
//! other goes to the handler that was there before.

use std::io;
use std::sync::OnceLock;

/// Whether this machine has the routine.
pub(crate) const SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

// Both routines: (to, from, bytes) -> 0, or 1 after a fault. No stack frame, so that the error return can be jumped
// to from anywhere between start and end.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.udm_guarded_copy, \"ax\", @progbits",
    ".hidden udm_guarded_copy",
    ".hidden udm_guarded_copy_end",
    ".hidden udm_guarded_copy_fault",
    ".globl udm_guarded_copy",
    ".globl udm_guarded_copy_end",
    ".globl udm_guarded_copy_fault",
    ".p2align 4",
    "udm_guarded_copy:",
    "mov rcx, rdx",
    // Below this length the start of `rep movsb` costs more than it saves.
    "cmp rcx, 256",
    "jb 3f",
    "rep movsb",
    "jmp 4f",
    "3:",
    "sub rcx, 16",
    "jb 5f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "jmp 3b",
    "5:",
    "add rcx, 16",
    "rep movsb",
    "4:",
    "udm_guarded_copy_end:",
    "xor eax, eax",
    "ret",
    "udm_guarded_copy_fault:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.udm_guarded_copy, \"ax\", @progbits",
    ".hidden udm_guarded_copy",
    ".hidden udm_guarded_copy_end",
    ".hidden udm_guarded_copy_fault",
    ".globl udm_guarded_copy",
    ".globl udm_guarded_copy_end",
    ".globl udm_guarded_copy_fault",
    ".p2align 4",
    "udm_guarded_copy:",
    "cmp x2, #64",
    "b.lo 4f",
    "3:",
    "ldp q0, q1, [x1], #32",
    "ldp q2, q3, [x1], #32",
    "stp q0, q1, [x0], #32",
    "stp q2, q3, [x0], #32",
    "sub x2, x2, #64",
    "cmp x2, #64",
    "b.hs 3b",
    "4:",
    "cbz x2, 6f",
    "5:",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 5b",
    "6:",
    "udm_guarded_copy_end:",
    "mov x0, #0",
    "ret",
    "udm_guarded_copy_fault:",
    "mov x0, #1",
    "ret",
    ".popsection",
);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod with_routine {
    unsafe extern "C" {
        fn udm_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
        fn udm_guarded_copy_end();
        fn udm_guarded_copy_fault();
    }

    /// Copies `len` bytes. False when either side could not be reached; then some of it may have been copied.
    ///
    /// # Safety
    /// Both ranges are mapped as far as this process is concerned: what lies beneath may be gone. [`prepare`]
    /// has succeeded.
    #[inline]
    pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> bool {
        // SAFETY: per the contract; a fault below the mapping ends in the routine's error return.
        unsafe { udm_guarded_copy(to, from, len) == 0 }
    }

    fn program_counter(context: &mut libc::ucontext_t) -> &mut usize {
        #[cfg(target_arch = "x86_64")]
        let pc = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let pc = &mut context.uc_mcontext.pc;
        // SAFETY: a register of 64 bits, on machines whose usize has as many.
        unsafe { &mut *std::ptr::from_mut(pc).cast::<usize>() }
    }

    pub(crate) fn claim(context: &mut libc::ucontext_t) -> bool {
        let pc = program_counter(context);
        let routine = udm_guarded_copy as *const () as usize..udm_guarded_copy_end as *const () as usize;
        let ours = routine.contains(pc);
        if ours {
            *pc = udm_guarded_copy_fault as *const () as usize;
        }
        ours
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use with_routine::claim;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use with_routine::copy;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) unsafe fn copy(_: *mut u8, _: *const u8, _: usize) -> bool {
    false
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn claim(_: &mut libc::ucontext_t) -> bool {
    false
}

/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// What answers faults at other addresses than the copy routine's. Does what a signal handler may; false when the
/// address is not its.
pub(crate) type ClaimFn = fn(address: usize) -> bool;

static FOREIGN: OnceLock<ClaimFn> = OnceLock::new();

/// As [`prepare`], with `claim` for faults in memory that another process shares. There is one such function.
pub(crate) fn prepare_with(claim: ClaimFn) -> io::Result<()> {
    FOREIGN.get_or_init(|| claim);
    prepare()
}

/// Sets the handler up, once for the process.
pub(crate) fn prepare() -> io::Result<()> {
    static DONE: OnceLock<i32> = OnceLock::new();
    match *DONE.get_or_init(install) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn install() -> i32 {
    let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    // SAFETY: all-zero is a valid sigaction.
    let (mut before, mut ours): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: asks only, into a sigaction of our own.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
        return errno();
    }
    // Before the handler can run.
    let _ = BEFORE.set(before);
    ours.sa_sigaction = on_sigbus as *const () as usize;
    // On the alternate stack where there is one, as the handlers of the runtime, which may follow.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler only does what a signal handler may.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } != 0 {
        return errno();
    }
    0
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the third argument is the thread's context, ours to change until we return.
    let ours = unsafe { context.cast::<libc::ucontext_t>().as_mut() }.is_some_and(claim);
    // SAFETY: with SA_SIGINFO the second argument tells of the fault, and where it was.
    let address = || unsafe { info.as_ref().map_or(0, |info| info.si_addr() as usize) };
    if ours || FOREIGN.get().is_some_and(|claim| claim(address())) {
        return;
    }
    match BEFORE.get() {
        Some(before) if !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: registered with SA_SIGINFO, so of this type.
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: registered without SA_SIGINFO, so of this type.
                let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal);
            }
        }
        _ => {
            // The faulting instruction runs again, and ends the process as it would have without us.
            // SAFETY: sigaction may be called in a handler; all-zero is SIG_DFL.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length() {
        if !SUPPORTED {
            return;
        }
        prepare().unwrap();
        let from: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        for len in (0..300).chain([511, 512, 1000]) {
            for skew in [0, 1, 7] {
                let mut to = vec![0xee; 1010];
                // SAFETY: both ranges are ours.
                assert!(unsafe { copy(to.as_mut_ptr().add(skew), from.as_ptr(), len) });
                assert!(to[skew..skew + len] == from[..len], "{len}");
                assert!(to[..skew].iter().chain(&to[skew + len..]).all(|b| *b == 0xee), "{len}");
            }
        }
    }
}
