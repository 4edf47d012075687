#!/bin/sh
# failing_memory.sh [POINTS]: one allocation or one start of a thread fails, as failing_calls.sh says.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/fault/failing_calls.sh"
says='lower cluster|raise the limit'
spares=yes

"$BRUME" plan "$deck" --set "$profile" --set cluster.devices_per_node=2 -o plan.toml > /dev/null 2>&1

# Rank 0 alone searches, so where another one fails nobody has to.
job() {
  rm -rf run
  code=0
  given=
  [ "$2" = 0 ] || given='--plan plan.toml'
  BRUME_FAILING_CALL=$1 BRUME_FAILING_RANK=$2 timeout -k 5 300 mpirun -n 2 --oversubscribe -x BRUME_FAILING_CALL -x BRUME_FAILING_RANK \
    -x LD_PRELOAD="$BRUME_FAILING_MEMORY" "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=2 \
    --set training.steps=4 $given > log 2>&1 || code=$?
}
fail_each "${1:-6}" new aligned thread

# Where all ranks find none at once, before they know of each other, one of them speaks for all.
job new:1 all
[ "$code" -eq 4 ] && [ "$(grep -c 'brume: memory ran out' log)" -eq 1 ] ||
  { cat log; echo "exit code $code where no rank found memory"; exit 1; }

# Where the system gives no address space MPI and other libraries end in their own ways: that is refused before.
for mib in 140 280 500; do
  code=0
  mpirun -n 2 --oversubscribe prlimit --as=$((mib << 20)) "$BRUME" run "$deck" --set "$profile" \
    --set cluster.devices_per_node=2 > log 2>&1 || code=$?
  [ "$code" -eq 4 ] && [ "$(grep -c 'brume: .*(ulimit -v)' log)" -eq 1 ] || { cat log; echo "$mib MiB: exit code $code"; exit 1; }
done
