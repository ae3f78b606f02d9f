#!/bin/sh
# Starts the process in the background, in a session of its own, and ends when its pid file is written.
name=${1:-proc-test}
echo start >> calls
rm -f "$name.pid"
(setsid sh -c 'echo $$ > "$0.pid.new"; mv "$0.pid.new" "$0.pid"; exec "./$0" 1000' "$name" </dev/null >/dev/null 2>&1 &)
until test -s "$name.pid"; do sleep 0.01; done
