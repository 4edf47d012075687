#!/bin/sh
# checkpoint_cost.sh PERF_CHECKPOINT: a checkpoint from a copy costs a training at most 1 % of its time, at the interval
# that its cost and a failure every three hours ask for; it is on disk in at most 1 / 0.8 times what a plain write and
# fsync of the same bytes take; comparing replicas costs at most 0.5 %. Turns of one run are compared, by their medians.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for ranks in 1 2; do
  mpirun -n "$ranks" --oversubscribe --bind-to none "$1" > log 2>&1 || { cat log; exit 1; }
  cat log
  awk -v ranks="$ranks" '
    /^from/ { rows++; if ($(NF - 1) > 1.0) bad = 1 }
    /^from a copy  / { if ($6 < 0.8) bad = 1 }
    /^a comparison/ { compared++; split($0, part, ": "); if (part[2] + 0 > 0.5) bad = 1 }
    END { exit bad || rows != 3 || compared != ranks - 1 }' log || { echo "dearer than promised"; exit 1; }
done
