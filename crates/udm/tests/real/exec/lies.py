"""Requests of device mapper whose lengths and addresses are not what they say."""

import ctypes
import errno
import fcntl
import mmap
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)
VERSION, LIST, LOAD = 0xC138FD00, 0xC138FD02, 0xC138FD09
HEADER = 312
control = os.open("/dev/mapper/control", os.O_RDWR)


def header(size, start=HEADER, count=0, name=b""):
    head = struct.pack("=3I 4I i 3I Q", 4, 0, 0, size, start, count, 0, 0, 0, 0, 0, 0)
    return (head + name).ljust(HEADER, b"\0")


def check(command, address, expect):
    ctypes.set_errno(0)
    result = libc.ioctl(control, ctypes.c_ulong(command), ctypes.c_void_p(address))
    got = ctypes.get_errno() if result < 0 else 0
    assert got == expect, f"{command:#x}: {errno.errorcode.get(got, got)}, not {errno.errorcode.get(expect, expect)}"


def check_bytes(command, data, expect):
    buffer = ctypes.create_string_buffer(bytes(data), len(data))
    check(command, ctypes.addressof(buffer), expect)


check_bytes(VERSION, header(HEADER), 0)
check(VERSION, 0, errno.EFAULT)
check(VERSION, 16, errno.EFAULT)
check(VERSION, 2**64 - 8, errno.EFAULT)
check_bytes(VERSION, header(0), errno.EINVAL)
check_bytes(VERSION, header(304), errno.EINVAL)
check_bytes(VERSION, header(2**32 - 1), errno.EINVAL)
check_bytes(VERSION & ~0xFF | 0x7F, header(HEADER), errno.ENOTTY)
# The end of the memory is before the end of the buffer that is claimed.
page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
libc.munmap(ctypes.c_void_p(at + mmap.PAGESIZE), mmap.PAGESIZE)
page[mmap.PAGESIZE - HEADER : mmap.PAGESIZE] = header(2 * HEADER)
check(VERSION, at + mmap.PAGESIZE - HEADER, errno.EFAULT)
# A table whose records lead out of the buffer, and into each other.
for start, count, record in [
    (2**32 - 1, 1, b""),
    (HEADER, 2**31, b""),
    (HEADER, 1, struct.pack("=QQiI16s", 0, 8, 0, 2**32 - 1, b"zero")),
    (HEADER, 2, struct.pack("=QQiI16s", 0, 8, 0, 0, b"zero")),
    (HEADER, 1, struct.pack("=QQiI16s", 0, 8, 0, 40, b"z" * 16)),
]:
    data = header(HEADER + 128, start, count, b"none") + record.ljust(128, b"\0")
    buffer = ctypes.create_string_buffer(data, len(data))
    result = libc.ioctl(control, ctypes.c_ulong(LOAD), ctypes.c_void_p(ctypes.addressof(buffer)))
    assert result < 0, (start, count, record)
# A descriptor that is something else's, and none.
other = os.open("/dev/null", os.O_RDWR)
for descriptor, expect in [(other, errno.ENOTTY), (999, errno.EBADF)]:
    try:
        fcntl.ioctl(descriptor, VERSION, bytearray(header(HEADER)))
        raise AssertionError(descriptor)
    except OSError as error:
        assert error.errno == expect, (descriptor, error)
print("all refused")
