#!/bin/sh
# Generate through the night, and go on after whatever happens to the process.
#
#     scripts/overnight.sh DIR [options and prompt of mlxchat generate]
#     scripts/overnight.sh night --until 07:00 --ignore-eos --max-kv-size 512 -m smollm2 "A saga."
#
# The text is in DIR/output.txt, or where -o says. Started again with the same DIR, after a power
# cut for example, it goes on where the latest checkpoint is, and ends when it would have ended.
# MLXCHAT is the command to run, MLXCHAT_PAUSE the seconds before another try.

set -u

if [ $# -lt 1 ]; then
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
        # Done, nonsense that another try does not mend, going round in circles, told to end.
        0 | 2 | 3 | 129 | 130 | 143) exit $status ;;
    esac

    # What fails five times without ever lasting a minute is not a matter of luck.
    if [ $(($(date +%s) - begun)) -ge 60 ]; then
        failures=0
    fi
    failures=$((failures + 1))
    if [ $failures -ge 5 ]; then
        echo "overnight.sh: giving up after $failures failures, the last with status $status" >&2
        exit $status
    fi
    echo "overnight.sh: it ended with status $status; going on from the latest checkpoint" >&2
    sleep "${MLXCHAT_PAUSE:-5}"
done
