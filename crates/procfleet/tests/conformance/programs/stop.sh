#!/bin/sh
# Tells the process to end.
echo stop >> calls
kill "$(cat "${1:-proc-test}.pid")"
