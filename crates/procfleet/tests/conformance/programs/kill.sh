#!/bin/sh
# Ends the process the hard way.
echo kill >> calls
kill -9 "$(cat "${1:-proc-test}.pid")"
