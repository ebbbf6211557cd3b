#!/bin/bash
# GUEST: run the scenarios in ./scenarios, write each with its results to ./recorded. The format is
# told in README.md; started by record.sh.
set -u
. ./guest-lib.sh
JOB=$PWD
WORK=/tmp/work
unset COLUMNS
# The name under which dmsetup answers "which device is this number?".
ln -sf dmsetup /bin/devmap_name
declare -A HELD=()

# ---- devices and placeholders ------------------------------------------------------------------
# null_blk, because its major number is not a small one that other figures could be taken for.
DEVICES=(nul0 nul1 nul2 nul3)
make_devices() {
    local name
    NUMBERS=()
    for name in "${DEVICES[@]}"; do
        null_block "$name" 128 memory_backed=1 discard=1 || exit 1
        NUMBERS+=("$(cat "/sys/block/$name/dev")")
    done
}
make_devices
MADE_FIRST=${NUMBERS[*]}
for module in dm-zero dm-thin-pool dm-snapshot; do modprobe $module || exit 1; done
DM_MAJOR=$(awk '$2 == "device-mapper" { print $1 }' /proc/devices)

# What a placeholder stands for in this guest.
expand() {
    local text=$1 i
    text=${text//@DM_MAJOR@/$DM_MAJOR}
    text=${text//@NL@/$'\n'}
    for i in "${!DEVICES[@]}"; do
        text=${text//@DEV${i}@/\/dev\/${DEVICES[$i]}}
        text=${text//@DEV${i}_MM@/${NUMBERS[$i]}}
    done
    printf '%s' "$text"
}

# The other way round, for what was printed.
NORMALISE=()
for i in "${!DEVICES[@]}"; do
    name=${DEVICES[$i]} number=${NUMBERS[$i]}
    NORMALISE+=(-e "s#/dev/$name\b#@DEV$i@#g" -e "s/\b$name\b/@DEV${i}_NAME@/g"
        -e "s/\b$number\b/@DEV${i}_MM@/g"
        -e "s/(${number%:*}, ${number#*:})/(@DEV${i}_MAJOR@, @DEV${i}_MINOR@)/g")
done
NORMALISE+=(-e "s/\b$DM_MAJOR\b/@DM_MAJOR@/g" -e 's#/dev/mapper/#@DM_DIR@/#g')

# show TAG FILE: the file's lines behind a tag.
show() {
    [ -s "$2" ] || return 0
    sed "${NORMALISE[@]}" -e "s/^/$1 /" "$2"
    [ -z "$(tail -c 1 "$2")" ] || printf '\n\\\n'
}

# ---- steps -------------------------------------------------------------------------------------
# split LINE: into the array WORDS, at spaces; '...' and "..." are taken as they stand.
split() {
    local rest=$1 word='' open=0 part quote
    WORDS=()
    while [ -n "$rest" ]; do
        case $rest in
            ' '*)
                [ $open = 0 ] || WORDS+=("$word")
                word='' open=0 rest=${rest# } ;;
            [\'\"]*)
                quote=${rest:0:1} rest=${rest:1}
                part=${rest%%"$quote"*}
                word+=$part open=1 rest=${rest#*"$quote"} ;;
            *)
                part=${rest%%[ \'\"]*}
                word+=$part open=1 rest=${rest#"$part"} ;;
        esac
    done
    [ $open = 0 ] || WORDS+=("$word")
}

# Standard error is for information only: no usage text and no list of all fields over and over,
# unless the step asks for it whole, and no line twice running.
shorten() {
    if [[ $NOTE == '~ stderr: '* ]]; then cat; return; fi
    sed -e '/^Usage:/,$c\Usage: ...' \
        -e '/^Mapped Device Name Fields$/,/^  ?  *- Show help/c\(the list of fields)' \
        -e '/^Selection operands$/,/^ *}  - List subset end/c\(the list of operators)' | uniq
}

run_command() {
    local status=0
    split "$(expand "$1")"
    # env, because a word like COLUMNS=20 may stand before the program.
    timeout 20 env "${WORDS[@]}" < /tmp/stdin > /tmp/stdout 2> /tmp/stderr || status=$?
    [ $status != 124 ] || { echo "time limit: $1" >&2; FAILED=1; }
    show '|' /tmp/stdout
    if [ -s /tmp/stderr ]; then
        shorten < /tmp/stderr > /tmp/stderr.short
        show '!' /tmp/stderr.short
    fi
    dmesg -c > /tmp/kernel
    if [ -s /tmp/kernel ]; then
        # Some of it prints what is no text.
        sed -n '/[^ -~]/d; s/^\[ *[0-9.]*\] \(.*device-mapper:.*\)/\1/p' /tmp/kernel > /tmp/kernel.dm
        show 'k' /tmp/kernel.dm
    fi
    echo "? $status"
}

# What a read or a write came to: a checksum, ok, or the name of the error that dd told.
outcome() { # STATUS OK
    if [ "$1" = absent ]; then echo absent
    elif [ "$1" = 0 ]; then echo "$2"
    else case $(cat /tmp/stderr) in
        *'No space left on device'*) echo ENOSPC ;;
        *'Input/output error'*) echo EIO ;;
        *'Operation not supported'*) echo EOPNOTSUPP ;;
        *) echo "not understood: $(cat /tmp/stderr)" >&2; FAILED=1 ;;
    esac; fi > /tmp/stdout
    show '|' /tmp/stdout
}

run_directive() {
    local fd path status=0
    split "$(expand "$1")"
    set -- "${WORDS[@]}"
    case $1 in
        # Else they would make or find a file of this name.
        write | read | discard) if [ ! -b "/dev/mapper/$2" ]; then outcome absent; return; fi ;;
    esac
    case $1 in
        hold)
            # Looked at first: a redirection that fails would end this script.
            if [ -b "/dev/mapper/$2" ]; then
                exec {fd}< "/dev/mapper/$2"
                HELD[$2]=$fd
            else
                echo "no node to hold: $2" >&2
                FAILED=1
            fi ;;
        release)
            fd=${HELD[$2]:-}
            [ -z "$fd" ] || exec {fd}<&-
            unset "HELD[$2]" ;;
        file)
            cp /tmp/stdin "$2" ;;
        write)
            timeout 20 bash -c ". $JOB/guest-lib.sh; put /dev/mapper/$2 0 $3 $4 $5" 2> /tmp/stderr || status=$?
            outcome $status ok ;;
        read)
            dd if="/dev/mapper/$2" bs=512 skip="$3" count="$4" iflag=direct of=/tmp/read status=none \
                2> /tmp/stderr || status=$?
            outcome $status "crc32 $(busybox crc32 < /tmp/read)" ;;
        discard)
            blkdiscard -o $(($3 * 512)) -l $(($4 * 512)) "/dev/mapper/$2" 2> /tmp/stderr || status=$?
            outcome $status ok ;;
        until)
            fd=$2
            shift 2
            for ((status = 0; status < 200; status++)); do
                if dmsetup status "$fd" | grep -qF -- "$*"; then return; fi
                sleep 0.1
            done
            echo "never: $fd says $*" >&2
            FAILED=1 ;;
        node)
            path=/dev/mapper/$2
            if [ -b "$path" ]; then
                echo "$((0x$(stat -c %t "$path"))):$((0x$(stat -c %T "$path"))) $(stat -c '%a %u %g' "$path")"
            elif [ -e "$path" ]; then echo "not a block device"
            else echo absent
            fi > /tmp/stdout
            show '|' /tmp/stdout ;;
        *)
            echo "unknown directive: $1" >&2
            FAILED=1 ;;
    esac
}

# flush: run the step that was read, if any, and print it with its results.
flush() {
    [ -n "$STEP" ] || return 0
    printf '%s\n' "$STEP"
    [ -z "$INPUT" ] || sed 's/^/< /' /tmp/input
    [ -z "$NOTE" ] || printf '%s\n' "$NOTE"
    if [ -n "$INPUT" ]; then expand "$(cat /tmp/input)"$'\n' > /tmp/stdin; else : > /tmp/stdin; fi
    case $STEP in
        '$ '*) run_command "${STEP#'$ '}" ;;
        '@ '*) run_directive "${STEP#'@ '}" ;;
    esac
    STEP='' INPUT='' NOTE=''
}

# record FILE: the scenario's comments and steps, with new results in place of old ones.
record() {
    local line
    STEP='' INPUT='' NOTE=''
    while IFS= read -r line; do
        case $line in
            '$ '* | '@ '*) flush; STEP=$line ;;
            '< '* | '<')
                if [ -z "$INPUT" ]; then : > /tmp/input; INPUT=1; fi
                line=${line#<}
                printf '%s\n' "${line# }" >> /tmp/input ;;
            '~ '*) NOTE=$line ;;
            '#'* | '') flush; printf '%s\n' "$line" ;;
            '| '* | '! '* | 'k '* | '? '* | '|' | '!' | '\') ;;
            *) echo "line not understood: $line" >&2; FAILED=1 ;;
        esac
    done < "$1"
    flush
}

# Major and minor of every mapped device.
numbers() { dmsetup --manglename none ls | sed -n 's/.*(\([0-9]*\):\([0-9]*\))$/\1 \2/p'; }

# Back to no mapped device and no node, whatever the scenario left. A stack comes down one level a
# round.
clean_up() {
    local name fd major minor
    for name in "${!HELD[@]}"; do
        fd=${HELD[$name]}
        exec {fd}<&-
    done
    HELD=()
    for _ in 1 2 3 4 5 6 7 8; do
        [ -n "$(numbers)" ] || break
        numbers | while read -r major minor; do
            for command in clear resume remove; do dmsetup --manglename none $command -j "$major" -m "$minor"; done
        done > /dev/null 2>&1
    done
    [ -z "$(numbers)" ] || { echo "devices are left:"; dmsetup info; FAILED=1; }
    find /dev/mapper -type b -exec rm -f {} +
    # What was written goes with the device.
    for name in "${DEVICES[@]}"; do
        echo 0 > "/sys/kernel/config/nullb/$name/power"
        rmdir "/sys/kernel/config/nullb/$name"
    done
    make_devices
    [ "${NUMBERS[*]}" = "$MADE_FIRST" ] || { echo "devices have other numbers: ${NUMBERS[*]}"; FAILED=1; }
}

FAILED=0
for file in scenarios/*.golden; do
    [ -e "$file" ] || continue
    name=$(basename "$file")
    rm -rf $WORK
    mkdir $WORK
    dmesg -c > /dev/null
    cd $WORK || exit 1
    record "$JOB/$file" > "/tmp/$name" 2> /tmp/complaints
    [ ! -s /tmp/complaints ] || { echo "$name:"; cat /tmp/complaints; FAILED=1; }
    clean_up
    cd "$JOB" || exit 1
    cp "/tmp/$name" "recorded/$name"
    echo "recorded $name: $(grep -c '^[$] ' "recorded/$name") commands"
done
if [ -e want-limits ]; then bash ./limits-guest.sh > recorded/limits.txt || FAILED=1; fi
# Last, because it ends with no device mapper.
if [ -e want-targets ]; then bash ./facts-guest.sh > recorded/targets.txt || FAILED=1; fi
exit $FAILED
