#!/bin/sh
# Runs a test of a build for NVIDIA devices; 77, which ctest counts as skipped, where there is none.
[ -e /dev/nvidiactl ] || exit 77
export BRUME_ON_DEVICE=1  # for what scripts ask of hosts alone
exec "$@"
