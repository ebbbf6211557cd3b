#!/bin/bash
# Build the reference guest: a Debian kernel, and an initramfs with the real device-mapper tools.
#
#   [UDM_LAB=dir] [KERNEL=backports|stable] [INSTALL=1] build-guest.sh
#
# Can be run again: an unpacked kernel is kept, the initramfs is made anew. Only INSTALL=1
# installs anything on this machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$HERE/../../scripts/apt-aside.sh"
case $KERNEL in backports | stable) ;; *) die "KERNEL=$KERNEL: expected backports or stable" ;; esac
ROOT=$LAB/initramfs-$KERNEL
mkdir -p "$LAB"

install_packages() {
    local installed
    # To ask the registry for nothing takes half a minute.
    installed=$(dpkg-query -W -f '${db:Status-Status}\n' "${PACKAGES[@]}" 2> /dev/null | grep -cx installed || true)
    [ "$installed" != ${#PACKAGES[@]} ] || return 0
    # A run before that was ended in the middle may have left things half done.
    dpkg --configure -a
    apt-get -q update
    DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 \
        install -y --no-install-recommends "${PACKAGES[@]}"
}

# Download the suite's kernel package and unpack it into KERNEL_DIR.
fetch_kernel() {
    local apt=$LAB/apt-$KERNEL suites='' package
    [ "$KERNEL" = stable ] ||
        suites="s/^Suites:.*/Suites: $(. /etc/os-release; echo "$VERSION_CODENAME")-backports/"
    apt_aside "$apt" "$suites"
    mkdir "$apt/download"
    apt-get -q update
    package=$(apt-cache depends linux-image-amd64 |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$package" ] || die "no kernel package in suite $KERNEL"
    (cd "$apt/download" && apt-get -q download "$package")
    unset APT_CONFIG
    rm -rf "$KERNEL_DIR"
    mkdir -p "$KERNEL_DIR"
    dpkg -x "$apt/download/$package"_*.deb "$KERNEL_DIR"
    rm -rf "$apt"
    # Last, since its presence is what tells that the kernel is whole.
    ln -sfn "$(cd "$KERNEL_DIR" && echo boot/vmlinuz-*)" "$KERNEL_IMAGE"
}

# Copy program $1 and the shared objects it is linked with.
copy_program() {
    local path object
    path=$(find_program "$1") || { note "left out, not installed: $1"; return 0; }
    rm -f "$ROOT/bin/$1"
    cp -L "$path" "$ROOT/bin/$1"
    { ldd "$path" 2>/dev/null || true; } | { grep -o '/[^ ]*' || true; } |
        while read -r object; do copy_object "$object"; done
}

copy_object() {
    [ -e "$ROOT$1" ] || { mkdir -p "$ROOT$(dirname "$1")"; cp -L "$1" "$ROOT$1"; }
}

make_tree() {
    local name
    rm -rf "$ROOT"
    mkdir -p "$ROOT"/{bin,etc/lvm,dev,proc,sys,tmp,run,mnt,root,share,host,var/lock,lib,lib64,usr/lib}
    # One directory under every usual name: the kernel calls /sbin/modprobe, lvm /usr/sbin/...
    ln -s bin "$ROOT/sbin"
    ln -s ../bin "$ROOT/usr/bin"
    ln -s ../bin "$ROOT/usr/sbin"
    # busybox first: real programs replace its applets.
    cp "$(find_program busybox)" "$ROOT/bin/busybox"
    for name in $("$ROOT/bin/busybox" --list); do
        [ "$name" = busybox ] || ln -sf busybox "$ROOT/bin/$name"
    done
    for name in "${PROGRAMS[@]}"; do copy_program "$name"; done
    for name in modprobe insmod lsmod rmmod; do ln -sf kmod "$ROOT/bin/$name"; done
    for name in pvcreate vgcreate vgremove vgs lvcreate lvremove lvs; do ln -sf lvm "$ROOT/bin/$name"; done
    if [ -e "$ROOT/bin/pdata_tools" ]; then
        for name in thin_{check,dump,restore,repair,delta,ls,rmap,metadata_size} cache_check cache_dump era_dump; do
            ln -sf pdata_tools "$ROOT/bin/$name"
        done
    fi
    # glibc opens this one by name when a thread is cancelled.
    for name in /lib/*/libgcc_s.so.1; do copy_object "$name"; done
    echo 'root:x:0:0:root:/root:/bin/sh' > "$ROOT/etc/passwd"
    echo 'root:x:0:' > "$ROOT/etc/group"
    ln -s /proc/mounts "$ROOT/etc/mtab"
    # There is no udev in the guest: lvm makes its nodes itself.
    cat > "$ROOT/etc/lvm/lvm.conf" <<'EOC'
activation { udev_sync = 0 udev_rules = 0 monitoring = 0 verify_udev_operations = 0 }
devices { obtain_device_list_from_udev = 0 external_device_info_source = "none" use_devicesfile = 0 }
global { event_activation = 0 use_lvmpolld = 0 }
EOC
    cp "$HERE/guest-init.sh" "$ROOT/init"
    chmod +x "$ROOT/init"
}

# The modules a storage guest can want, with everything they depend on, unpacked.
copy_modules() {
    local release from to module path
    release=$(kernel_release)
    from=$KERNEL_DIR/lib/modules/$release
    to=$ROOT/lib/modules/$release
    mkdir -p "$to"
    cp "$from"/modules.{builtin,builtin.modinfo,order} "$to/"
    [ -e "$from/modules.dep.bin" ] || depmod -b "$KERNEL_DIR" "$release"
    # Some of these directories are missing in some kernels.
    { cd "$from/kernel"
      find drivers/md drivers/block/{brd,loop,nbd,null_blk,virtio_blk,ublk_drv}* drivers/nvme/host \
          drivers/virtio fs/9p fs/ext4 fs/configfs net/9p crypto lib arch/x86/crypto \
          -name '*.ko*' 2>/dev/null || true; } |
        sed 's|.*/||; s|\.ko.*||' |
        while read -r module; do
            # A module that this kernel cannot load, for want of a dependency, is of no use here.
            modprobe -d "$KERNEL_DIR" -S "$release" --show-depends "$module" 2>/dev/null || true
        done | awk '$1 == "insmod" { print $2 }' | sort -u |
        while read -r path; do
            module=${path#*"/lib/modules/$release/"}
            mkdir -p "$to/$(dirname "$module")"
            case $path in
                *.xz) xz -dc "$path" > "$to/${module%.xz}" ;;
                *) cp "$path" "$to/$module" ;;
            esac
        done
    sed -i 's/\.ko\.xz$/.ko/' "$to/modules.order"
    depmod -b "$ROOT" "$release"
    note "$(find "$to" -name '*.ko' | wc -l) modules of $release"
}

if [ "${INSTALL:-0}" = 1 ]; then install_packages; fi
for program in busybox cpio depmod xz "${REQUIRED[@]}"; do
    find_program "$program" > /dev/null || die "$program is not installed; INSTALL=1 installs it"
done
[ -e "$KERNEL_IMAGE" ] || fetch_kernel
make_tree
copy_modules
# Not compressed: unpacking is then a plain copy, which an emulated CPU does much faster.
(cd "$ROOT" && find . | cpio -o -H newc --quiet) > "$INITRD.new"
mv "$INITRD.new" "$INITRD"
note "$INITRD: $(du -m "$INITRD" | cut -f 1) MiB"
recipe > "$BUILT"
