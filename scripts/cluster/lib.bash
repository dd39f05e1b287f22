# shellcheck shell=bash
# Functions that the scripts of this folder share: error messages, free ports, and finding and ending exactly the
# processes that a rig started.
#
# A rig is what one `start DIR` started. Its processes are found again in two ways: by the process ids in DIR/pids, and
# by the environment variable EVENER_TEST_RIG=DIR, which the programs that its daemons start inherit.

# Ends the script with a message and status 1.
die() {
    echo "$(basename "$0"): $1" >&2
    exit 1
}

# Ends the script with status 3: this machine has no such thing, or this user may not use it.
unavailable() {
    echo "unavailable: $1"
    exit 3
}

# Daemons are found in /usr/sbin also where a user's PATH leaves it out.
PATH=$PATH:/usr/sbin:/sbin
need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || unavailable "$program is not installed"
    done
}

# Prints the absolute path of a rig's folder, which may not exist yet. Daemons change their working folder.
absolute() {
    case $1 in
    /*) echo "$1" ;;
    *) echo "$PWD/$1" ;;
    esac
}

# Prints a port that no socket listens on. The kernel gives ports from 32768 on to outgoing connections by itself.
free_port() {
    local port
    while true; do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        # shellcheck disable=SC2188
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
}

# Waits until a command succeeds, at most so many seconds.
wait_for() {
    local until=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
    shift
    until "$@" 2>/dev/null; do
        [ "${EPOCHREALTIME/[.,]/}" -lt "$until" ] || return 1
        sleep 0.02
    done
}

# Prints the process ids of the given processes and of all their descendants.
tree() {
    local pid children
    for pid in "$@"; do
        echo "$pid"
        children=$(cat "/proc/$pid/task"/*/children 2>/dev/null || true)
        # shellcheck disable=SC2086
        [ -z "$children" ] || tree $children
    done
}

# Prints the processes whose environment has the given assignment, without this script and its ancestors.
with_environment() {
    local assignment=$1 file pid ancestors=" " ancestor=$$
    while [ "$ancestor" -gt 1 ]; do
        ancestors+="$ancestor "
        ancestor=$(sed -n 's/^PPid:\t//p' "/proc/$ancestor/status" 2>/dev/null || echo 0)
    done
    grep -lzFx -e "$assignment" /proc/[0-9]*/environ 2>/dev/null | while read -r file; do
        pid=${file#/proc/}
        pid=${pid%/environ}
        case $ancestors in
        *" $pid "*) ;;
        *) echo "$pid" ;;
        esac
    done || true
}

# Whether a process is there and runs the program of that name. Process ids are given again after their process ended.
runs() {
    local pid=$1 program=$2
    [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$program" ] && ! is_zombie "$pid"
}

is_zombie() {
    grep -q '^State:[[:space:]]*[ZX]' "/proc/$1/status" 2>/dev/null
}

# Kills processes and waits until they have ended (a zombie has), at most five seconds.
kill_and_wait() {
    local pid
    for pid in "$@"; do
        # 0, 1 and negative numbers stand for more than one process, or for all.
        if ! [[ $pid =~ ^[0-9]+$ ]] || [ "$pid" -le 1 ]; then die "not a process of the rig: $pid"; fi
        kill -KILL "$pid" 2>/dev/null || true
    done
    # A stopped process dies of SIGKILL without being continued.
    for pid in "$@"; do
        wait_for 5 gone "$pid" || { echo "process $pid does not end" >&2; return 1; }
    done
}

gone() {
    [ ! -e "/proc/$1" ] || is_zombie "$1"
}
