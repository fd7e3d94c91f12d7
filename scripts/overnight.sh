#!/bin/sh
# Generate through the night, and continue after any failure of the process.
#
#     scripts/overnight.sh DIR [options and prompt of mlxchat generate]
#     scripts/overnight.sh night --until 07:00 --ignore-eos --max-kv-size 512 -m smollm2 "A saga."
#
# Writes the text to DIR/output.txt, or to the file given with -o. If started again with the same
# DIR, for example after a power cut, it continues from the latest checkpoint, and ends when it would
# have ended. MLXCHAT is the command to run, MLXCHAT_PAUSE the seconds between tries.

set -u

if [ $# -lt 1 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

directory=$1
shift
failures=0

while :; do
    begun=$(date +%s)
    if [ -f "$directory/run.json" ]; then
        ${MLXCHAT:-mlxchat} generate --resume "$directory"
    else
        ${MLXCHAT:-mlxchat} generate --checkpoint "$directory" -n -1 "$@"
    fi
    status=$?

    case $status in
        # Done, a usage error, a loop in the text, or ended by a signal: do not try again.
        0 | 2 | 3 | 129 | 130 | 143) exit $status ;;
    esac

    # After five failures in less than a minute each, another try will not help.
    if [ $(($(date +%s) - begun)) -ge 60 ]; then
        failures=0
    fi
    failures=$((failures + 1))
    if [ $failures -ge 5 ]; then
        echo "overnight.sh: giving up after $failures failures, the last with status $status" >&2
        exit $status
    fi
    echo "overnight.sh: exited with status $status; trying again" >&2
    sleep "${MLXCHAT_PAUSE:-5}"
done
