#!/bin/sh
# A job on two emulated devices, whose ranks communicate through NCCL: stopped and resumed it gives the bits of one
# never stopped, with all that can be offloaded; and on one device, which both share through the host, the same losses.
set -eu
. "$BRUME_REGRESSION_DIR/emulation/small_job.sh"
job() { mpirun -n 2 --oversubscribe "$BRUME" run $small --set training.steps=6 "$@"; }
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | sed -n '/DATA/,/}/p' | grep -E '[0-9]'; }
job --set output.directory=whole > log 2>&1 || { cat log; exit 1; }
cat log
grep -q 'through NCCL' log
job --set output.directory=parts --steps 3
job --set output.directory=parts
[ "$(losses whole)" = "$(losses parts)" ] || { echo "resumed losses differ"; losses whole; losses parts; exit 1; }

BRUME_EMULATED_DEVICES=1 job --set output.directory=shared > log 2>&1 || { cat log; exit 1; }
grep -q 'through pinned host memory and MPI' log
losses whole > a
losses shared > b
paste a b | tr -d ',' | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-5) { print "differs:", $0; bad = 1 } n++ }
  END { if (n < 1) bad = 1; exit bad }'
