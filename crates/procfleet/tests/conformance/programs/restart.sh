#!/bin/sh
# Ends the process, waits until it is gone, and starts another.
pid=$(cat "${1:-proc-test}.pid" 2>/dev/null)
./stop.sh "$@" 2>/dev/null
while test -n "$pid" && kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
exec ./start.sh "$@"
