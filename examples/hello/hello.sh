#!/bin/sh
# A small service to try procfleet with: says hello once a second into hello.log, and reads hello.conf again on SIGHUP.
#   hello.sh start    goes into the background and writes hello.pid
#   hello.sh reload   makes it read its configuration again
#   hello.sh stop     ends it
cd "$(dirname "$0")" || exit 1
case "$1" in
  start)
    setsid sh ./hello.sh serve </dev/null >/dev/null 2>&1 &
    echo $! >hello.pid
    echo "hello is starting"
    ;;
  reload) kill -HUP "$(cat hello.pid)" ;;
  stop) kill "$(cat hello.pid)" ;;
  serve)
    read_config() { greeting=$(cat hello.conf 2>/dev/null || echo hello); }
    read_config
    trap read_config HUP
    while :; do
      echo "$(date +%T) $greeting" >>hello.log
      sleep 1
    done
    ;;
  *)
    echo "usage: $0 start|reload|stop" >&2
    exit 2
    ;;
esac
