# Run by nbdsh with `uri` and `nature` set: requests one by one, and what must come of them.
import errno, random

SECTOR, MIB = 512, 1 << 20
# The library is to send what it would refuse by itself.
h.set_strict_mode(0)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
size = h.get_size()
assert h.get_structured_replies_negotiated() and h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)


def fails(expect, call, *args):
    try:
        call(*args)
    except nbd.Error as error:
        assert error.errnum == expect, (call.__name__, args[1:], error.string, errno.errorcode[expect])
    else:
        assert False, (call.__name__, args[1:], "no error, expected", errno.errorcode[expect])


def extents(start, length):
    "The flags of every sector in a range."
    flags = []
    def got(context, offset, entries, error):
        assert context == "base:allocation" and offset == start + len(flags) * SECTOR
        for count, flag in zip(entries[::2], entries[1::2]):
            assert count and count % SECTOR == 0
            flags.extend([flag] * (count // SECTOR))
    while len(flags) * SECTOR < length:
        done = len(flags) * SECTOR
        h.block_status(length - done, start + done, got)
        assert len(flags) * SECTOR > done
    return flags[: length // SECTOR]


def chunks(length, offset, flags=0):
    "What structured replies bring: each byte once."
    seen, data = bytearray(length), bytearray(length)
    def got(buffer, at, status, error):
        place = at - offset
        assert not any(seen[place : place + len(buffer)]), "a byte came twice"
        seen[place : place + len(buffer)] = b"\1" * len(buffer)
        data[place : place + len(buffer)] = buffer
    h.pread_structured(length, offset, got, flags)
    assert all(seen), "a byte did not come"
    return data


# Unaligned requests and such past the end are refused whatever the device is, and the connection lives.
fails(errno.EINVAL, h.pread, SECTOR, size)
fails(errno.EINVAL, h.pread, 100, 0)
fails(errno.EINVAL, h.pread, SECTOR, 100)
fails(errno.EINVAL, h.pread, SECTOR, 1 << 62)
if nature != "ReadOnly":
    fails(errno.EINVAL, h.pwrite, b"x" * SECTOR, 1)
    fails(errno.EINVAL, h.pwrite, b"x" * 100, 0)
    fails(errno.ENOSPC, h.pwrite, b"x" * 2 * SECTOR, size - SECTOR)
    fails(errno.ENOSPC, h.zero, 2 * SECTOR, size - SECTOR)
    fails(errno.EINVAL, h.trim, 2 * SECTOR, size - SECTOR)
    fails(errno.EINVAL, h.zero, 100, 0)

if nature == "Fails":
    fails(errno.EIO, h.pread, 4096, 0)
    fails(errno.EIO, h.pwrite, b"x" * 4096, size - 4096)
    fails(errno.EIO, h.zero, 4096, 0)
    fails(errno.EIO, h.pread, 4096, 0, nbd.CMD_FLAG_DF)
elif nature == "ReadOnly":
    before = h.pread(4096, 0)
    fails(errno.EPERM, h.pwrite, b"x" * 4096, 0)
    fails(errno.EPERM, h.zero, 4096, 0)
    fails(errno.EPERM, h.trim, 4096, 0)
    assert h.pread(4096, 0) == before != bytes(4096)
elif nature == "Zeroes":
    h.pwrite(b"x" * 4096, 8192, nbd.CMD_FLAG_FUA)
    h.zero(4096, 0)
    h.trim(4096, 0)
    h.flush()
    assert chunks(MIB, 0) == bytes(MIB)
    assert all(flag & nbd.STATE_ZERO for flag in extents(0, size))
else:
    # Against a copy in memory: random writes, zeroes and trims in odd places, then everything is read.
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    model = bytearray(size)
    h.zero(size, 0)
    trimmed = set()
    for step in range(120):
        count = dice.choice([1, 2, 7, 8, 64, 129, 300])
        # Now and then across a border of chunks and segments.
        sector = dice.randrange(size // SECTOR - count)
        start, length = sector * SECTOR, count * SECTOR
        touched = range(sector, sector + count)
        what = dice.choice("wwwwfztn")
        if what in "wf":
            data = dice.randbytes(SECTOR) * count
            h.pwrite(data, start, nbd.CMD_FLAG_FUA if what == "f" else 0)
            model[start : start + length] = data
            trimmed.difference_update(touched)
        elif what in "zn":
            h.zero(length, start, nbd.CMD_FLAG_NO_HOLE if what == "n" else 0)
            model[start : start + length] = bytes(length)
            trimmed.difference_update(touched)
        else:
            # What is trimmed may hold anything until it is written again.
            h.trim(length, start)
            trimmed.update(touched)
        if dice.random() < 0.1:
            h.flush()

    def check(read):
        for start in range(0, size, 4 * MIB):
            data = read(4 * MIB, start)
            for at in range(0, len(data), SECTOR):
                sector = (start + at) // SECTOR
                if sector not in trimmed:
                    assert data[at : at + SECTOR] == model[start + at : start + at + SECTOR], ("sector", sector)

    check(h.pread)
    check(chunks)
    check(lambda length, offset: chunks(length, offset, nbd.CMD_FLAG_DF))

    # What is said to read as zeroes does.
    for sector, flag in enumerate(extents(0, size)):
        if flag & nbd.STATE_ZERO and sector not in trimmed:
            assert not any(model[sector * SECTOR : (sector + 1) * SECTOR]), ("data in a hole", sector)

    # Many requests in flight, replied to in any order.
    blocks = {n * 64 * 1024: dice.randbytes(4096) for n in range(64)}
    cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at) for at, data in blocks.items()]
    while cookies:
        h.poll(-1)
        cookies = [cookie for cookie in cookies if not h.aio_command_completed(cookie)]
    buffers = {at: nbd.Buffer(4096) for at in blocks}
    cookies = [h.aio_pread(buffer, at) for at, buffer in buffers.items()]
    while cookies:
        h.poll(-1)
        cookies = [cookie for cookie in cookies if not h.aio_command_completed(cookie)]
    assert all(buffers[at].to_bytearray() == data for at, data in blocks.items())
    h.cache(MIB, 0)
    # The largest request there is.
    h.pread(size, 0)

# After all this the connection is as good as new.
if nature != "Fails":
    h.pread(SECTOR, size - SECTOR)
h.shutdown()
