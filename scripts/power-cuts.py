#!/usr/bin/env python3
"""Cuts the power off beneath a program again and again, and looks whether it has lost what it had acknowledged.

    power-cuts.py [--udm UDM] [--dir DIR] [--cuts N] [--seed S] [--no-sync] PROGRAM

PROGRAM is sqlite-wal, sqlite-rollback, log (a file that records are appended to, in segments) or postgres. It writes to
ext4 on a loop node over a power-cut device. Each round it runs until it has acknowledged some transactions, in the
middle of others, and is cut off (udm cut); the file system is unmounted, the device loaded again, the file system
mounted, the program's own recovery done, and everything that was acknowledged is looked for.

--no-sync has the program leave its fsync out: then a loss is to be found. The round in which one is found is shown again
from the record of its writes and its seed, on a copy of the device from before the cut.

It needs root, loop devices and FUSE. Exit status 0: nothing was lost, or with --no-sync a loss was found and shown
again; 1: otherwise. In the end it prints one line of JSON.
"""
import argparse
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zlib

SECTORS = 262144  # 128 MiB
SEGMENT = 64  # records of a log's segment


class Sqlite:
    """A table of numbers; a transaction adds one, and changes another row."""

    def __init__(self, mode):
        self.mode = mode

    def open(self, directory, sync):
        db = sqlite3.connect(f"{directory}/db", isolation_level=None)
        db.execute(f"PRAGMA journal_mode={self.mode}")
        # Without EXTRA the end of a transaction with a rollback journal, which is its unlinking, is not durable.
        db.execute(f"PRAGMA synchronous={('FULL' if self.mode == 'WAL' else 'EXTRA') if sync else 'OFF'}")
        db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, pad TEXT)")
        return db

    def prepare(self, directory):
        self.open(directory, True).close()
        os.sync()

    def write(self, directory, sync, first, ack):
        db = self.open(directory, sync)
        number = first
        while True:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO t VALUES (?, ?)", (number, str(number) * 40))
            db.execute("UPDATE t SET pad = pad || 'x' WHERE n = ?", (number // 2,))
            db.execute("COMMIT")
            ack(number)
            number += 1

    def read(self, directory):
        db = sqlite3.connect(f"{directory}/db")
        (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
        if verdict != "ok":
            raise ValueError(f"integrity_check: {verdict}")
        numbers = {n for (n,) in db.execute("SELECT n FROM t")}
        db.close()
        return numbers


class Log:
    """Records of a number and its sum, appended to segments; a new segment is renamed into its place."""

    def prepare(self, directory):
        os.mkdir(f"{directory}/log")
        os.sync()

    def write(self, directory, sync, first, ack):
        def force(fd):
            if sync:
                os.fsync(fd)

        folder = os.open(f"{directory}/log", os.O_RDONLY)
        number, segment, left = first, None, 0
        while True:
            if left == 0:
                if segment is not None:
                    os.close(segment)
                name = f"{directory}/log/{number:012}"
                segment, left = os.open(f"{name}.new", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), SEGMENT
                force(segment)
                os.rename(f"{name}.new", name)
                force(folder)
            text = f"{number:012} " + "r" * (number % 300)
            os.write(segment, f"{text} {zlib.crc32(text.encode()):08x}\n".encode())
            if sync:
                os.fdatasync(segment)
            ack(number)
            number, left = number + 1, left - 1

    def read(self, directory):
        numbers = set()
        for name in os.listdir(f"{directory}/log"):
            with open(f"{directory}/log/{name}", "rb") as segment:
                for line in segment.read().split(b"\n"):
                    text, _, total = line.rpartition(b" ")
                    if not name.endswith(".new") and total == b"%08x" % zlib.crc32(text):
                        numbers.add(int(text[:12]))
                    else:
                        # What follows a record that is not whole does not count.
                        break
        return numbers


class Session:
    """What it takes of PostgreSQL's protocol (version 3, simple queries): its own client need not be installed."""

    def __init__(self, path, user):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.stream = self.socket.makefile("rb")
        words = b"user\0" + user.encode() + b"\0database\0postgres\0\0"
        self.socket.sendall(struct.pack("!II", len(words) + 8, 196608) + words)
        self.answer()

    def answer(self):
        """The first column of the rows, up to where the server wants the next query."""
        rows = []
        while True:
            head = self.stream.read(5)
            if len(head) < 5:
                raise OSError("the server has hung up")
            kind, length = struct.unpack("!cI", head)
            body = self.stream.read(length - 4)
            if kind == b"E":
                raise OSError(body.replace(b"\0", b" ").decode(errors="replace"))
            if kind == b"D":
                (size,) = struct.unpack("!i", body[2:6])
                rows.append(body[6:6 + size].decode())
            if kind == b"Z":
                return rows

    def ask(self, text):
        query = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!I", len(query) + 4) + query)
        return self.answer()

    def close(self):
        self.stream.close()
        self.socket.close()


class Postgres:
    """A server of its own for each round; a transaction adds a number."""

    user = "postgres"

    def run(self, directory, *words, **kwargs):
        return subprocess.run(["runuser", "-u", self.user, "--", *words], check=True, cwd="/", **kwargs)

    def prepare(self, directory):
        os.mkdir(f"{directory}/pg")
        shutil.chown(f"{directory}/pg", self.user)
        self.run(directory, "initdb", "-D", f"{directory}/pg", "-A", "trust", "--no-locale", "-E", "UTF8", "--wal-segsize=1",
                 stdout=subprocess.DEVNULL)
        self.start(directory, True)
        self.sql(directory, "CREATE TABLE t (n BIGINT PRIMARY KEY, pad TEXT)")
        self.stop(directory)
        os.sync()

    def start(self, directory, sync):
        self.socket = f"{os.path.dirname(directory)}/pg"
        os.makedirs(self.socket, exist_ok=True)
        shutil.chown(self.socket, self.user)
        options = (f"-k {self.socket} -c listen_addresses= -c fsync={'on' if sync else 'off'} -c shared_buffers=8MB "
                   f"-c max_connections=8 -c checkpoint_timeout=30s -c full_page_writes=on "
                   f"-c synchronous_commit=on -c wal_buffers=64kB -c min_wal_size=2MB -c max_wal_size=32MB")
        self.run(directory, "pg_ctl", "-s", "-w", "-t", "60", "-D", f"{directory}/pg", "-o", options, "-l",
                 f"{self.socket}/log", "start", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self, directory, how="fast"):
        subprocess.run(["runuser", "-u", self.user, "--", "pg_ctl", "-D", f"{directory}/pg", "-m", how, "stop"],
                       cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def connect(self):
        return Session(f"{self.socket}/.s.PGSQL.5432", self.user)

    def sql(self, _, text):
        session = self.connect()
        try:
            return session.ask(text)
        finally:
            session.close()

    def write(self, directory, sync, first, ack):
        self.start(directory, sync)
        session, number = self.connect(), first
        while True:
            session.ask(f"INSERT INTO t VALUES ({number}, repeat('p', {number % 500}))")
            ack(number)
            number += 1

    def ended(self, directory):
        """The server is killed, as it would not survive a real cut."""
        try:
            with open(f"{directory}/pg/postmaster.pid", encoding="ascii") as file:
                pid = int(file.readline())
            os.kill(pid, signal.SIGQUIT)
            for _ in range(200):
                os.kill(pid, 0)
                time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            pass

    def read(self, directory):
        self.start(directory, True)
        numbers = {int(n) for n in self.sql(directory, "SELECT n FROM t")}
        self.stop(directory)
        return numbers


PROGRAMS = {"sqlite-wal": lambda: Sqlite("WAL"), "sqlite-rollback": lambda: Sqlite("DELETE"), "log": Log, "postgres": Postgres}


def run(*words, timeout=60, **kwargs):
    return subprocess.run(words, check=True, timeout=timeout, stdout=subprocess.PIPE, text=True, **kwargs).stdout


class Bench:
    """A device, a file system on it, and a program."""

    def __init__(self, args):
        self.args, self.program = args, PROGRAMS[args.program]()
        self.dir = tempfile.mkdtemp(prefix="power-cuts-", dir=args.dir)
        self.disk, self.mount = f"{self.dir}/disk", f"{self.dir}/mnt"
        self.table = f"0 {SECTORS} power-cut {self.disk} 0"
        self.env = dict(os.environ, UDM_DIR=f"{self.dir}/udm")
        os.mkdir(self.mount)
        os.chmod(self.dir, 0o755)
        with open(self.disk, "wb") as disk:
            disk.truncate(SECTORS * 512)

    def udm(self, *words):
        return run(self.args.udm, *words, env=self.env)

    def begin(self):
        made = subprocess.run([self.args.udm, "create", "cut", "--node=loop", "--table", self.table], env=self.env,
                              stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        if made.returncode != 0:
            print(f"SKIP {made.stderr.strip()}")
            sys.exit(0)
        node = [line.split("\t") for line in self.udm("node").splitlines()]
        self.node = next(row[3] for row in node if row[0] == "cut")
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", self.node)
        self.mount_it()
        self.program.prepare(self.mount)

    def mount_it(self):
        run("mount", "-t", "ext4", self.node, self.mount)

    def unmount(self):
        for _ in range(100):
            if subprocess.run(["umount", self.mount], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.mount} cannot be unmounted")

    def end(self):
        subprocess.run(["umount", "-l", self.mount], stderr=subprocess.DEVNULL, check=False)
        subprocess.run([self.args.udm, "daemon", "--stop", "--forget"], env=self.env, stdout=subprocess.DEVNULL,
                       check=False, timeout=60)
        shutil.rmtree(self.dir, ignore_errors=True)

    def noise(self):
        """Writes that nobody waits for: the disk always has something to lose."""
        chance = random.Random()
        with open(f"{self.mount}/noise", "wb", buffering=0) as file:
            while True:
                os.pwrite(file.fileno(), os.urandom(8192), chance.randrange(256) * 8192)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                time.sleep(0.0005)

    def start_writer(self, first):
        """Begins to write. Returns the process, and where the numbers come from that it acknowledges."""
        acks, answer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(acks)
                os.dup2(os.open(f"{self.dir}/said", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
                threading.Thread(target=self.noise, daemon=True).start()
                self.program.write(self.mount, not self.args.no_sync, first,
                                   lambda number: os.write(answer, b"%d\n" % number))
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        os.close(answer)
        return pid, acks

    def round(self, number, first, rng):
        """Returns the acknowledged numbers of the round, the cut, and where the image from before it is."""
        pid, acks = self.start_writer(first)
        acknowledged, wanted = b"", rng.randrange(1, 40)
        while acknowledged.count(b"\n") < wanted:
            got = os.read(acks, 4096)
            if not got:
                with open(f"{self.dir}/said", encoding="utf-8") as said, open(f"{self.dir}/udm/log", encoding="utf-8") as log:
                    told = said.read() + "".join(log.readlines()[-20:])
                raise RuntimeError(f"the program ended before it was cut off, in round {number}: {told}")
            acknowledged += got
        time.sleep(rng.random() * 0.01)
        seed = rng.getrandbits(63)
        if self.args.no_sync:
            # So that nothing is written between the copy and the cut.
            os.kill(pid, signal.SIGSTOP)
            run("cp", "--sparse=always", self.disk, f"{self.dir}/before")
        record = f"{self.dir}/record"
        if os.path.exists(record):
            os.unlink(record)
        cut = json.loads(self.udm("cut", "cut", "--seed", str(seed), "--record", record, "--json"))
        if self.args.no_sync:
            os.kill(pid, signal.SIGCONT)
        # Whatever it acknowledges after the cut does not count; what it had sent before does.
        os.set_blocking(acks, False)
        try:
            acknowledged += os.read(acks, 65536) if self.args.no_sync is False else b""
        except BlockingIOError:
            pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(acks)
        if hasattr(self.program, "ended"):
            self.program.ended(self.mount)
        self.unmount()
        whole = acknowledged.decode().split("\n")[:-1]
        return [int(n) for n in whole], cut

    def power_on(self):
        self.udm("reload", "cut", "--table", self.table)
        self.udm("resume", "cut")
        self.mount_it()

    def shows_again(self, seed, lost):
        """Whether the record and the seed lose the same, on the copy from before."""
        again = f"{self.dir}/again"
        run("cp", "--sparse=always", f"{self.dir}/before", again)
        self.udm("cut", again, "--replay", f"{self.dir}/record", "--seed", str(seed))
        run("cp", "--sparse=always", f"{self.dir}/after", f"{self.dir}/after.copy")
        same = subprocess.run(["cmp", "-s", again, f"{self.dir}/after"], check=False).returncode == 0
        run("mount", "-o", "loop", "-t", "ext4", again, self.mount)
        try:
            there = self.program.read(self.mount)
        except Exception:  # pylint: disable=broad-except
            there = set()
        self.unmount()
        return same, all(n not in there for n in lost)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--udm", default="target/release/udm")
    parser.add_argument("--dir", help="where the device's file and the daemon's directory are made")
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-sync", action="store_true")
    args = parser.parse_args()
    args.udm = os.path.abspath(args.udm)
    missing = [name for name in ("mkfs.ext4", "mount") if not shutil.which(name)]
    if os.geteuid() != 0 or missing:
        print(f"SKIP {missing[0]} is not installed" if missing else "SKIP only root can mount what is on a device")
        return 0
    bench, rng = Bench(args), random.Random(args.seed)
    began, known, next_number = time.time(), set(), 1
    totals = {"writes": 0, "whole": 0, "torn": 0, "lost": 0}
    verdict, status, cuts = "nothing was lost", 0, 0
    try:
        bench.begin()
        for cuts in range(1, args.cuts + 1):
            acknowledged, cut = bench.round(cuts, next_number, rng)
            for key in totals:
                totals[key] += cut[key]
            known.update(acknowledged)
            if args.no_sync:
                run("cp", "--sparse=always", bench.disk, f"{bench.dir}/after")
            lost, why = [], ""
            try:
                bench.power_on()
                there = bench.program.read(bench.mount)
                lost = sorted(known - there)
            except Exception as error:  # pylint: disable=broad-except
                lost, why, there = acknowledged, f": {error}", set()
            if lost:
                status, verdict = 1, f"cut {cuts}, seed {cut['seed']}: lost {lost[:5]} of {len(known)}{why}"
                if args.no_sync:
                    subprocess.run(["umount", bench.mount], check=False, stderr=subprocess.DEVNULL)
                    same, again = bench.shows_again(cut["seed"], lost)
                    verdict += f"; shown again by the record and the seed: {again}, the same bytes: {same}"
                    status = 0 if again and same else 1
                break
            # What was not acknowledged may be there, or not; from here on it is known.
            known, next_number = set(there), max(there, default=0) + 1
        else:
            status = 1 if args.no_sync else 0
    finally:
        bench.end()
    result = {"program": args.program, "sync": not args.no_sync, "cuts": cuts, "verdict": verdict, **totals,
              "acknowledged": len(known), "seconds": round(time.time() - began)}
    print(json.dumps(result))
    return status


if __name__ == "__main__":
    sys.exit(main())
