#!/usr/bin/env python3
"""What one NBD client costs the others: the latency of small writes while other clients vanish, stall, or ask for much.

    scripts/nbd-neighbours.py [CASE...]

UDM is the program that serves, target/release/udm unless set. Prints for each case how many writes there were, and the median,
99th percentile and longest of their latencies; for memory what the server had at its start, at most, and 10 s after its clients
had gone. Nothing is judged here: the bounds that hold are those of crates/export/tests/nbd/fairness.rs, which count.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

READ, WRITE, TRIM, ZEROES, STATUS = 0, 1, 4, 6, 7
NO_HOLE = 2
MIB = 1 << 20


class Client:
    """A client with simple replies, or with structured ones."""

    def __init__(self, path, structured=False):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.take(18)
        self.socket.sendall(struct.pack(">I", 3))
        if structured:
            self.socket.sendall(struct.pack(">QII", 0x49484156454F5054, 8, 0))
            self.take(20)
        self.socket.sendall(struct.pack(">QIIIH", 0x49484156454F5054, 7, 6, 0, 0))
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.take(20))
            self.take(length)
            if kind == 1:
                return
            if kind >> 31:
                raise SystemExit(f"refused: {kind:#x}")

    def take(self, count):
        data = bytearray()
        while len(data) < count:
            some = self.socket.recv(count - len(data))
            if not some:
                raise EOFError
            data += some
        return bytes(data)

    @staticmethod
    def request(kind, offset, length, flags=0, cookie=0):
        return struct.pack(">IHHQQI", 0x25609513, flags, kind, cookie, offset, length)

    def write(self, offset, data):
        self.socket.sendall(self.request(WRITE, offset, len(data)) + data)
        self.take(16)


class Neighbour(threading.Thread):
    """Writes until told to stop, one at a time, and measures each."""

    def __init__(self, path, length):
        super().__init__()
        self.client, self.data, self.stop, self.times = Client(path), b"x" * length, False, []

    def run(self):
        while not self.stop:
            began = time.monotonic()
            self.client.write(0, self.data)
            self.times.append(time.monotonic() - began)
            time.sleep(0.001)

    def end(self):
        self.stop = True
        self.join()
        times = sorted(self.times)
        at = lambda part: times[min(len(times) - 1, int(len(times) * part))] * 1000
        return f"{len(times):6} writes {at(0.5):8.2f} {at(0.99):8.2f} {times[-1] * 1000:9.2f} ms"


def flood(path, bytes_, count, keep=False):
    """Clients that pipeline requests, and go at once or stay."""
    clients = [Client(path) for _ in range(count)]
    for client in clients:
        client.socket.setblocking(False)
        try:
            client.socket.send(bytes_)
        except BlockingIOError:
            pass
        if not keep:
            client.socket.close()
    return clients


def rss(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) // 1024


def measure(path, what):
    """Small and ordinary writes while `what` happens."""
    neighbours = [Neighbour(path, length) for length in (4096, MIB)]
    for neighbour in neighbours:
        neighbour.start()
    time.sleep(0.2)
    kept = what(path)
    time.sleep(float(os.environ.get("SECONDS", "3")))
    # What did not get through is as late as it is by now; those who keep it out go.
    late = threading.Timer(30, lambda: [client.socket.close() for client in kept or []])
    late.start()
    for neighbour in neighbours:
        print(f"  {len(neighbour.data):8} bytes {neighbour.end()}", flush=True)
    late.cancel()


reads = Client.request(READ, 0, 32 * MIB) * 9000
zeroes = Client.request(ZEROES, 0, 2048 * MIB, NO_HOLE) * 9000
trims = Client.request(TRIM, 0, 2048 * MIB) * 9000
stalled = Client.request(WRITE, 0, 32 * MIB) + b"y" * 100_000
CASES = {
    "quiet": lambda path: None,
    "gone-reads": lambda path: flood(path, reads, 1),
    "gone-reads-50": lambda path: flood(path, reads, 50),
    "gone-zeroes": lambda path: flood(path, zeroes, 1),
    "gone-trims": lambda path: flood(path, trims, 1),
    "one-zeroes": lambda path: flood(path, Client.request(ZEROES, 0, 2048 * MIB, NO_HOLE), 1, True),
    "stalled-300": lambda path: flood(path, stalled, 300, True),
}


def memory(path, pid):
    start, most = rss(pid), 0
    clients = flood(path, reads, 150, True) + flood(path, stalled * 2, 300, True)
    writes = b"".join(Client.request(WRITE, 0, 65536) + bytes(65536) for _ in range(64))
    clients += flood(path, writes, 100, True)
    for _ in range(30):
        most = max(most, rss(pid))
        time.sleep(0.1)
    for client in clients:
        client.socket.close()
    # Others go on meanwhile: memory must not wait for a pause.
    other, until = Client(path), time.monotonic() + 10
    while time.monotonic() < until:
        other.write(0, bytes(4096))
        time.sleep(0.01)
    print(f"  {start} MiB at the start, {most} at most, {rss(pid)} after 10 s", flush=True)


def main():
    # So that the server ends with this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    udm = os.environ.get("UDM", "target/release/udm")
    for case in sys.argv[1:] or [*CASES, "memory"]:
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, "s")
            # What the device holds would count as the server's memory.
            target = "zero" if case == "memory" else "ram"
            server = subprocess.Popen(
                [udm, "run", "--nbd", path, f"disk,,,,0 {4096 * 2048} {target}"], stdout=subprocess.DEVNULL
            )
            try:
                while not os.path.exists(path):
                    time.sleep(0.05)
                time.sleep(0.2)
                print(case, flush=True)
                memory(path, server.pid) if case == "memory" else measure(path, CASES[case])
            finally:
                server.kill()
                server.wait()


main()
