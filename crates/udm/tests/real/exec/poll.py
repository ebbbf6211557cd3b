"""The control node is readable after an event, once it has been armed (`DM_DEV_ARM_POLL`)."""

import fcntl
import os
import select
import struct
import subprocess

ARM = 0xC138FD10
control = os.open("/dev/mapper/control", os.O_RDWR)


def arm():
    fcntl.ioctl(control, ARM, bytearray(struct.pack("=3I4I", 4, 37, 0, 312, 312, 0, 0).ljust(312, b"\0")))


def readable(milliseconds):
    poll = select.poll()
    poll.register(control, select.POLLIN)
    return bool(poll.poll(milliseconds))


assert not readable(0)
for name in ["one", "two"]:
    arm()
    assert not readable(100), "nothing has happened"
    subprocess.run(["dmsetup", "create", name, "--notable"], check=True)
    assert readable(10000)
    assert readable(0), "until it is armed again"
    subprocess.run(["dmsetup", "remove", name], check=True)
print("polled")
