#!/bin/sh
# failing_memory.sh [POINTS]: one allocation or one start of a thread fails, at so many points of a job, on each of its
# two ranks: the job ends with exit code 4 and one line that says why. Before MPI has started, MPI's own words do.
set -eu
points=${1:-6}
. "$BRUME_REGRESSION_DIR/tiny_job.sh"

"$BRUME" plan "$deck" --set "$profile" --set cluster.devices_per_node=2 -o plan.toml > /dev/null 2>&1

# job KIND:N RANK; rank 0 alone searches, so where another one fails nobody has to.
job() {
  rm -rf run
  code=0
  given=
  [ "$2" -eq 0 ] || given='--plan plan.toml'
  BRUME_FAILING_CALL=$1 BRUME_FAILING_RANK=$2 timeout 60 mpirun -n 2 --oversubscribe -x BRUME_FAILING_CALL -x BRUME_FAILING_RANK \
    -x LD_PRELOAD="$BRUME_FAILING_MEMORY" "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=2 \
    --set training.steps=4 $given > log 2>&1 || code=$?
}

for kind in new aligned thread; do
  for rank in 0 1; do
    job $kind:0 $rank
    count=$(sed -n "s/^calls of $kind: //p" log)
    [ "$code" -eq 0 ] && [ "$count" -gt 0 ] || { cat log; exit 1; }
    failed=0
    for i in $(seq "$points"); do
      [ "$i" -le "$count" ] || break
      at=$i  # each where there are few, else spread over the job by the golden ratio
      [ "$count" -le "$points" ] || at=$(awk "BEGIN { x = $i * 0.6180339887; print int((x - int(x)) * $count) + 1 }")
      job $kind:$at $rank
      if ! grep -q "here a call of $kind fails" log; then
        [ "$code" -eq 0 ] || { cat log; echo "$kind:$at on rank $rank: exit code $code, and nothing failed"; exit 1; }
        continue
      fi
      failed=$((failed + 1))
      grep -q 'occurred in MPI_Init' log && continue
      lines=$(grep -c 'brume:' log || true)
      [ "$code" -eq 4 ] && [ "$lines" -eq 1 ] ||
        { cat log; echo "$kind:$at on rank $rank: exit code $code and $lines lines, expected 4 and 1"; exit 1; }
    done
    [ "$failed" -gt 0 ] || { echo "no call of $kind failed on rank $rank"; exit 1; }
    echo "$kind on rank $rank: $failed of $count failed, each with exit code 4"
  done
done

# Where the system gives no address space MPI and other libraries end in their own ways: that is refused before.
for mib in 140 280 500; do
  code=0
  mpirun -n 2 --oversubscribe prlimit --as=$((mib << 20)) "$BRUME" run "$deck" --set "$profile" \
    --set cluster.devices_per_node=2 > log 2>&1 || code=$?
  [ "$code" -eq 4 ] && [ "$(grep -c 'brume: .*(ulimit -v)' log)" -eq 1 ] || { cat log; echo "$mib MiB: exit code $code"; exit 1; }
done
