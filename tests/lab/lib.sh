# shellcheck shell=bash disable=SC2034  # settings are used by the scripts that source this
# Settings that every lab script shares; sourced, not run.

# Where the lab's kernel, initramfs and runs live. Nothing of it belongs in the repository.
LAB=${UDM_LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/udm-lab}
# Where these scripts are.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Debian suite that the guest's kernel comes from: backports (6.12, the reference) or stable (6.1).
KERNEL=${KERNEL:-backports}
KERNEL_DIR=$LAB/kernel-$KERNEL
KERNEL_IMAGE=$KERNEL_DIR/vmlinuz
INITRD=$LAB/initrd-$KERNEL.img
# What the initramfs was made by, once it is whole.
BUILT=$LAB/built-$KERNEL

# Packages that hold what goes into the guest, and what boots it.
PACKAGES=(qemu-system-x86 qemu-system-common seabios busybox-static cpio kmod xz-utils fio
    dmsetup lvm2 thin-provisioning-tools e2fsprogs strace)
# Programs copied into the guest with the libraries they need. A missing one is left out.
PROGRAMS=(bash sed grep cp dd awk mawk timeout stat truncate sha256sum cmp strace kmod losetup blockdev
    blkdiscard mount umount fio dmsetup lvm pdata_tools mkfs.ext4 e2fsck fstrim tar)
# Of those, the ones without which no golden can be recorded.
REQUIRED=(bash sed timeout stat kmod blockdev dmsetup)

die() { echo "$(basename "$0"): $*" >&2; exit 1; }
note() { echo "== $*" >&2; }

# Release of the unpacked kernel, as uname -r prints it.
kernel_release() { basename "$(echo "$KERNEL_DIR"/lib/modules/*)"; }

# Path of program $1 on this machine, sbin included; fails when there is none.
find_program() { PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v "$1"; }

# A sum of the scripts that an initramfs is made by.
recipe() { cat "$HERE"/{lib,build-guest,guest-init}.sh | sha256sum; }
