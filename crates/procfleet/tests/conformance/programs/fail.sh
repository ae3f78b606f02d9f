#!/bin/sh
# A command that fails, and says why on both outputs.
echo said on stdout
echo said on stderr >&2
exit 3
