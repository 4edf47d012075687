#!/bin/sh
# failing_memory.sh [POINTS]: a device gives no memory, of its own or pinned, or no stream, event, product or communicator,
# as fault/failing_calls.sh says.
set -eu
. "$BRUME_REGRESSION_DIR/emulation/small_job.sh"
. "$BRUME_REGRESSION_DIR/fault/failing_calls.sh"
says='free: let nothing else run|left: .*host_memory_gib'
spares=

job() {
  rm -rf run
  code=0
  BRUME_FAILING_CALL=$1 BRUME_FAILING_RANK=$2 timeout -k 5 60 mpirun -n 2 --oversubscribe -x BRUME_FAILING_CALL -x BRUME_FAILING_RANK \
    "$BRUME" run $small --set training.steps=2 --set output.directory=run > log 2>&1 || code=$?
}
fail_each 8 device pinned
fail_each "${1:-1}" stream event cublas nccl
