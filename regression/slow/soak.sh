#!/bin/sh
# soak.sh [STEPS]: a rank is killed every 50 steps on average, and the job started again, until all steps are done: nine of
# ten steps that were executed count, and the end is that of a job without kills, bit by bit.
set -eu
steps=${1:-10000}
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
job() {
  exec mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set training.steps="$steps" --set output.checkpoint_every=5 --set output.log_every=1 \
    --set output.trace=false --set output.directory="$1"
}
state() { grep '"xxh3_128"' "$1/checkpoints/step-$steps/manifest.json"; }

(job undisturbed) > log 2>&1
[ -n "$(state undisturbed)" ]
executed=0 kills=0
while [ ! -d "run/checkpoints/step-$steps" ]; do
  begun=$(ls run/checkpoints 2> /dev/null | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
  job run > log 2>&1 &
  mpirun=$!
  # Exponentially distributed: failures have no memory.
  wait_for=$(awk "BEGIN { srand($kills); print int(-50 * log(1 - rand())) + 1 }")
  rank=$((kills % 4))
  while kill -0 "$mpirun" 2> /dev/null && [ "$(grep -c "$a_step" log)" -lt "$wait_for" ]; do sleep 0.02; done
  for process in $(pgrep -P "$mpirun"); do
    ! tr '\0' '\n' < "/proc/$process/environ" 2> /dev/null | grep -q "^OMPI_COMM_WORLD_RANK=$rank$" ||
      { kill -KILL "$process" 2> /dev/null && kills=$((kills + 1)); }
  done
  code=0
  wait "$mpirun" || code=$?
  last=$(grep "$a_step" log | tail -n 1 | awk '{ print $1 }')
  executed=$((executed + ${last:-${begun:-0}} - ${begun:-0}))
  [ "$code" -eq 137 ] || [ "$code" -eq 0 ] || { cat log; echo "exit code $code after $kills kills"; exit 1; }
done
share=$(awk "BEGIN { printf \"%.3f\", $steps / $executed }")
echo "$kills kills in $steps steps, $executed steps executed: $share of them count"
[ "$kills" -gt $((steps / 100)) ] || { echo "too few kills"; exit 1; }
[ "$(state run)" = "$(state undisturbed)" ] || { echo "the end is not that of a job without kills"; exit 1; }
awk "BEGIN { exit !($share >= 0.9) }"
