//! Stacks and their devices.

use crate::error::{Failure, answer};
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use udm_base::Errno;
use udm_core::MappedDevice;
use udm_io::{BlockDevice, Domain};
use udm_stack::Stack;

/// The devices of one specification.
pub struct UdmStack {
    pub(crate) domain: Domain,
    pub(crate) stack: Stack,
}

impl UdmStack {
    /// The device called `name`; the last one when it is null.
    ///
    /// # Safety
    /// `name` is null or leads to a text that ends with a zero.
    pub(crate) unsafe fn device(&self, name: *const c_char) -> Result<Arc<MappedDevice>, Failure> {
        if name.is_null() {
            return Ok(self.stack.device(self.stack.top())?);
        }
        // SAFETY: the caller's promise.
        Ok(self.stack.device(unsafe { text(name, "the device's name") }?)?)
    }
}

/// A flag of a device: writes are refused.
pub const UDM_DEVICE_READ_ONLY: u32 = 1;
/// A flag of a device: takes UDM_DISCARD.
pub const UDM_DEVICE_DISCARD: u32 = 2;
/// A flag of a device: UDM_HIPRI requests can be polled for.
pub const UDM_DEVICE_POLL: u32 = 4;

/// What a device is like.
#[repr(C)]
pub struct UdmDeviceInfo {
    /// In bytes.
    pub size: u64,
    /// In bytes: offsets and lengths are multiples of it.
    pub logical_block_size: u32,
    /// In bytes: other memory is copied.
    pub memory_alignment: u32,
    /// In bytes; 0 when it takes none.
    pub discard_granularity: u32,
    /// UDM_DEVICE_READ_ONLY and the others.
    pub flags: u32,
}

/// # Safety
/// `at` leads to a text that ends with a zero and stays for `'a`, or is null.
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if at.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Failure::new(Errno::EINVAL, format!("{what} is no UTF-8: {text:?}")))
}

/// Makes every device of `concise` and makes it live; an empty text makes none, and udm_command may. May block: it
/// opens devices. Close it with udm_stack_close.
///
/// # Safety
/// `concise` leads to a text that ends with a zero, `stack` to a pointer; either may be null, which is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_stack_open(concise: *const c_char, stack: *mut *mut UdmStack) -> c_int {
    answer((|| {
        if stack.is_null() {
            return Err(Failure::null("where the stack goes"));
        }
        // SAFETY: the caller's promise.
        let concise = unsafe { text(concise, "the specification") }?;
        let domain = Domain::default();
        let made = Box::new(UdmStack {
            stack: if concise.trim().is_empty() { Stack::empty(&domain) } else { Stack::new(&domain, concise)? },
            domain,
        });
        // SAFETY: not null, and the caller's promise.
        unsafe { *stack = Box::into_raw(made) };
        Ok(0)
    })())
}

/// Takes the devices down. Every queue must be closed before. Null is allowed. May block.
///
/// # Safety
/// `stack` comes from `udm_stack_open`, is closed once and has no open queue; or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_stack_close(stack: *mut UdmStack) {
    if !stack.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(stack) });
    }
}

/// What the device is like now; null names the last of the specification.
///
/// # Safety
/// `stack` is open; `device` is null or leads to a text that ends with a zero, `info` to its place. Null is refused for
/// the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_device_info(
    stack: *const UdmStack,
    device: *const c_char,
    info: *mut UdmDeviceInfo,
) -> c_int {
    answer((|| {
        // SAFETY: the caller's promise.
        let stack = unsafe { stack.as_ref() }.ok_or_else(|| Failure::null("the stack"))?;
        if info.is_null() {
            return Err(Failure::null("where the information goes"));
        }
        // SAFETY: the caller's promise.
        let dev = unsafe { stack.device(device) }?;
        let limits = dev.limits();
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let found = UdmDeviceInfo {
            size: dev.sectors().bytes(),
            logical_block_size: limits.logical_block_size,
            memory_alignment: limits.dma_alignment,
            discard_granularity: limits.discard_granularity,
            flags: flag(dev.read_only(), UDM_DEVICE_READ_ONLY)
                | flag(limits.max_discard.get() > 0, UDM_DEVICE_DISCARD)
                | flag(dev.can_poll(), UDM_DEVICE_POLL),
        };
        // SAFETY: not null, and the caller's promise.
        unsafe { info.write(found) };
        Ok(0)
    })())
}
