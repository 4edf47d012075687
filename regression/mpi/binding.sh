#!/bin/sh
# A rank that was started on one core of its part of the node is told so, one that has its part is not.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
cores=$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)
[ "$cores" -gt 1 ] || exit 77
first=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status)
told() {
  "$@" "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=1 --dry-run > log 2>&1 || { cat log; exit 1; }
  grep 'each rank is bound to' log
}
told taskset -c "$first" | grep -q 'to 1 of the'
if told env; then echo "a rank with all cores of the node is told that it has not"; exit 1; fi
