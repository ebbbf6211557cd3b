#!/usr/bin/env bash
# Measures every row of the table of speeds in BENCHMARKS.md and prints the table, with the limit that each row has to
# keep. ROUNDS (15) rounds of RUNTIME (300ms) each take turns. UDM_BENCH is the command, `target/release/udm bench`
# unless set. With --write the table and its commands replace those in BENCHMARKS.md. Ends with 1 when a row misses its
# limit.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo 'bench-issue2.sh: needs python3 to read the results' >&2; exit 2; }
exec python3 - "${ROUNDS:-15}" "${RUNTIME:-300ms}" "${UDM_BENCH:-target/release/udm bench}" "${1:-}" <<'PYTHON'
import json, os, platform, shlex, statistics, subprocess, sys

rounds, runtime, command = sys.argv[1], sys.argv[2], shlex.split(sys.argv[3])
if sys.argv[4] not in ("", "--write"):
    sys.exit(f"bench-issue2.sh {sys.argv[4]}: expected --write or nothing")
lines = []


def tell(line):
    lines.append(line)
    print(line, flush=True)


GIB = 2097152
RAM = f"r,,,,0 {GIB} ram"
LINEAR = f"{RAM};l,,,,0 {GIB} linear /dev/mapper/r 0"
EIGHT = RAM + "".join(
    f";l{i},,,,0 {GIB} linear /dev/mapper/{'r' if i == 1 else f'l{i - 1}'} 0" for i in range(1, 9))
STRIPED = f"{RAM};a,,,,0 {GIB // 2} ram;b,,,,0 {GIB // 2} ram;" \
          f"s,,,,0 {GIB} striped 2 128 /dev/mapper/a 0 /dev/mapper/b 0"
NULL = "null:size=1G"
NULLS = f"n,,,,0 {GIB} linear {NULL} 0;n2,,,,0 {GIB} linear /dev/mapper/n 0;n3,,,,0 {GIB} linear /dev/mapper/n2 0;" \
        f"s,,,,0 {GIB} striped 2 128 {NULL} 0 {NULL} 0"
JOBS = "--bs=512 --numjobs=12 --iodepth=1 --lat=off"
RAND4K = "--rw=randread --bs=4k --iodepth=1 --lat=off"
WRITE4K = "--rw=randwrite --bs=4k --iodepth=1 --lat=off --fill"
DEEP = "--rw=randread --bs=4k --iodepth=32 --lat=off --no-fill"
UNCOMPILED = " ".join(f"--set=l{i}:compile=0" for i in range(1, 9))

# What, concise, device, against, options, kind of figure, limit.
# ratio: at least the limit. ns: ns an I/O, at most. more: ns an I/O above the other device, at most.
ROWS = [
    ("linear / ram, 512 B, 12 jobs, read", LINEAR, "l", "r", f"--rw=read {JOBS}", "ratio", 0.97),
    ("the same, cloning forced", LINEAR, "l", "r", f"--rw=read {JOBS} --set=l:clone_always=1", "ratio", None),
    ("linear / ram, 512 B, 12 jobs, randread", LINEAR, "l", "r", f"--rw=randread {JOBS}", "ratio", 0.97),
    ("the same, cloning forced", LINEAR, "l", "r", f"--rw=randread {JOBS} --set=l:clone_always=1", "ratio", None),
    ("linear / ram, 512 B, 12 jobs, uncompiled", LINEAR, "l", "r", f"--rw=randread {JOBS} --set=l:compile=0",
     "ratio", None),
    ("eight linears / ram, compiled", EIGHT, "l8", "r", f"--rw=randread {JOBS}", "ratio", 0.90),
    ("eight linears / ram, uncompiled", EIGHT, "l8", "r", f"--rw=randread {JOBS} {UNCOMPILED}", "ratio", None),
    ("striped over two rams / ram, 4K randread", STRIPED, "s", "r", RAND4K, "ratio", 0.90),
    ("striped over two rams / ram, 4K randwrite", STRIPED, "s", "r", WRITE4K,
     "ratio", 0.90),
    ("ram / memcpy, 4K randread over 1 GiB", RAM, "r", "memcpy", RAND4K, "ratio", 0.85),
    ("ram / memcpy, 4K randwrite over 1 GiB", RAM, "r", "memcpy", WRITE4K,
     "ratio", 0.85),
    ("null, depth 32, generator included", None, NULL, None, DEEP, "ns", 63),
    ("linear over null", NULLS, "n", NULL, DEEP, "more", 12),
    ("a second linear, uncompiled", NULLS, "n2", "n", f"{DEEP} --set=n:compile=0 --set=n2:compile=0", "more", 12),
    ("a third linear, uncompiled", NULLS, "n3", "n2",
     f"{DEEP} --set=n:compile=0 --set=n2:compile=0 --set=n3:compile=0", "more", 12),
    ("a second and third linear, compiled", NULLS, "n3", "n", DEEP, "more", None),
    ("striped over two nulls", NULLS, "s", NULL, DEEP, "more", 12),
    ("linear over null, cloning forced", NULLS, "n", NULL, f"{DEEP} --set=n:clone_always=1", "more", None),
]


def quartiles(figures):
    if len(figures) < 2:
        return figures[0], figures[0]
    low, _, high = statistics.quantiles(figures, n=4, method="inclusive")
    return low, high


def measure(concise, device, against, options):
    words = command + (["--concise", concise] if concise else []) + ["--device", device]
    words += (["--against", against] if against else []) + options.split()
    shown = " ".join(shlex.quote(word) for word in ["udm", "bench"] + words[len(command):])
    done = subprocess.run(words + ["--runtime", runtime, "--rounds", rounds, "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{shown}\nended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return shown, json.loads(done.stdout)


def figures_of(kind, found):
    turns = found["udm"]["rounds"]
    if kind == "ratio":
        return [turn["ratio"] for turn in turns], "{:.3f}"
    if kind == "ns":
        return [1e9 / turn["iops"] for turn in turns], "{:.1f} ns"
    return [1e9 / turn["iops"] - 1e9 / turn["against_iops"] for turn in turns], "{:+.1f} ns"


model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
tell(f"{os.cpu_count()} CPUs ({model}), Linux {platform.release()}, load average {os.getloadavg()[0]:.1f}; "
      f"{rounds} rounds of {runtime}\n")
tell("| row | median | min .. max | middle half | IOPS | cloned | limit | verdict |")
tell("|---|---|---|---|---|---|---|---|")
commands, missed = [], 0
for what, concise, device, against, options, kind, limit in ROWS:
    shown, found = measure(concise, device, against, options)
    figures, text = figures_of(kind, found)
    median, (low, high) = statistics.median(figures), quartiles(figures)
    cloned = found["udm"]["totals"].get(device, {}).get("cloned", "")
    verdict, bound = "", ""
    if limit is not None:
        kept = median >= limit if kind == "ratio" else median <= limit
        missed += not kept
        verdict = "kept" if kept else "MISSED"
        bound = ("≥ " if kind == "ratio" else "≤ ") + (f"{limit:.2f}" if kind == "ratio" else f"{limit} ns")
    spread = f"{text.format(min(figures))} .. {text.format(max(figures))}"
    middle = f"{text.format(low)} .. {text.format(high)}"
    iops = f"{found['udm']['iops']['median'] / 1e6:.2f}M"
    tell(f"| {what} | {text.format(median)} | {spread} | {middle} | {iops} | {cloned} | {bound} | {verdict} |")
    commands.append((what, shown))
tell("\nThe commands, each with `--runtime " + runtime + " --rounds " + rounds + "`:\n\n```sh")
for what, shown in commands:
    tell(f"# {what}\n{shown}")
tell("```")
if sys.argv[4]:
    begin, end = "<!-- measured -->\n", "<!-- until here -->\n"
    page = open("BENCHMARKS.md").read()
    before, after = page.split(begin)[0], page.split(end)[1]
    open("BENCHMARKS.md", "w").write(before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after)
sys.exit(1 if missed else 0)
PYTHON
