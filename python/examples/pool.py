"""Makes a thin pool in two files, writes to a volume, takes a snapshot of it, and reads both."""

import tempfile
from pathlib import Path

import udm

MIB = 1 << 20


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, udm.Stack() as stack:
        metadata, data = Path(folder, "metadata"), Path(folder, "data")
        for path, size in [(metadata, 4 * MIB), (data, 64 * MIB)]:
            with open(path, "wb") as file:
                file.truncate(size)

        # Blocks of 64 KiB. The volume is larger than the pool: space is taken when it is written to.
        stack.create("pool", f"0 {64 * MIB // 512} thin-pool {metadata} {data} 128 0")
        stack.message("pool", "create_thin 0")
        stack.create("volume", f"0 {1024 * MIB // 512} thin /dev/mapper/pool 0")
        with stack.open("volume") as volume:
            volume.write(0, b"before" + bytes(4090))
            volume.flush()

            # A volume is still while a snapshot of it is taken.
            stack.suspend("volume")
            stack.message("pool", "create_snap 1 0")
            stack.resume("volume")
            stack.create("snapshot", f"0 {1024 * MIB // 512} thin /dev/mapper/pool 1")

            volume.write(0, b"after " + bytes(4090))
            with stack.open("snapshot") as snapshot:
                print("volume:", volume.read(0, 4096)[:6].decode())
                print("snapshot:", snapshot.read(0, 4096)[:6].decode())
        used = stack.status("pool").split()[5]
        print("blocks in use:", used)


if __name__ == "__main__":
    main()
