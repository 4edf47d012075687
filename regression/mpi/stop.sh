#!/bin/sh
# A signal to mpirun stops all ranks at the same step, after a checkpoint, with exit code 75; the same line
# again goes on from there.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
steps=training.steps=100000

# Not by tiny_job: the signal is for mpirun itself, not for a shell that waits for it.
mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set "$steps" > log 2>&1 &
job=$!
for _ in $(seq 200); do
  if grep -q "$a_step" log; then break; fi
  sleep 0.1
done
kill -USR1 "$job"
code=0
wait "$job" || code=$?
cat log
[ "$code" -eq 75 ] || { echo "expected exit code 75, got $code"; exit 1; }
stopped=$(sed -n 's/^stopped after \([0-9]*\) of.*/\1/p' log)
[ -f "run/checkpoints/step-$stopped/manifest.json" ] || { echo "no checkpoint of step $stopped"; exit 1; }

tiny_job --set "$steps" --steps $((stopped + 3)) > log 2>&1
cat log
grep -q "after $stopped steps" log || { echo "did not resume after step $stopped"; exit 1; }
[ -d "run/checkpoints/step-$((stopped + 3))" ]
