//! Nodes by way of the kernel: files of a FUSE mount, used as any program would.

mod device;
mod files;
mod loops;
mod place;
mod stalled;
