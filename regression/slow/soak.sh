#!/bin/sh
# soak.sh [STEPS]: a rank is killed every 50 steps on average, and the job started again, until all steps are done: nine of
# ten steps that were executed count, none is lost but those since the checkpoint before the last, each job is gone 5 s
# after its rank, nothing of ours is left behind, and the end is that of a job without kills, bit by bit.
set -eu
steps=${1:-10000}
every=5
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
mkdir temporary
export TMPDIR="$PWD/temporary"
job() { # <directory> <steps between checkpoints>
  exec mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set training.steps="$steps" --set output.checkpoint_every="$2" --set output.log_every=1 \
    --set output.trace=false --set output.directory="$1"
}
fail() { cat log; echo "$1"; exit 1; }
newest() { ls run/checkpoints 2> /dev/null | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }

(job undisturbed 0) > log 2>&1
[ -n "$(state undisturbed "$steps")" ]
executed=0 kills=0 slowest_ms=0 most_lost=0
while [ ! -d "run/checkpoints/step-$steps" ]; do
  begun=$(newest)
  : > log  # or the last job's lines would count until this one has begun
  job run $every >> log 2>&1 &
  mpirun=$!
  # Exponentially distributed: failures have no memory.
  wait_for=$(awk "BEGIN { srand($kills); print int(-50 * log(1 - rand())) + 1 }")
  rank=$((kills % 4))
  while kill -0 "$mpirun" 2> /dev/null && [ "$(grep -c "$a_step" log)" -lt "$wait_for" ]; do sleep 0.02; done
  killed_ms=
  for process in $(pgrep -P "$mpirun"); do
    ! tr '\0' '\n' < "/proc/$process/environ" 2> /dev/null | grep -q "^OMPI_COMM_WORLD_RANK=$rank$" ||
      { kill -KILL "$process" 2> /dev/null && kills=$((kills + 1)) && killed_ms=$(date +%s%3N); }
  done
  code=0
  wait "$mpirun" || code=$?
  [ "$code" -eq 137 ] || [ "$code" -eq 0 ] || fail "exit code $code after $kills kills"
  last=$(grep "$a_step" log | tail -n 1 | awk '{ print $1 }')
  executed=$((executed + ${last:-${begun:-0}} - ${begun:-0}))
  [ -n "$killed_ms" ] && [ "$code" -ne 0 ] || continue
  took_ms=$(($(date +%s%3N) - killed_ms))
  [ "$took_ms" -le "$slowest_ms" ] || slowest_ms=$took_ms
  kept=$(newest)
  lost=$((${last:-0} - ${kept:-0}))
  [ "$lost" -le "$most_lost" ] || most_lost=$lost
done
share=$(awk "BEGIN { printf \"%.3f\", $steps / $executed }")
echo "$kills kills in $steps steps, $executed steps executed: $share of them count; at most $most_lost lost at once;" \
  "jobs gone after at most $slowest_ms ms"
[ "$kills" -gt $((steps / 100)) ] || fail "too few kills"
[ "$(state run "$steps")" = "$(state undisturbed "$steps")" ] || fail "the end is not that of a job without kills"
[ "$most_lost" -le $((2 * every)) ] || fail "more than two intervals were lost at once"
[ "$slowest_ms" -le 5000 ] || fail "a job outlived its rank"
left=$(find temporary -mindepth 1 -maxdepth 1 ! -name 'ompi*'; find run -name '*.tmp' -o -name lock)
[ -z "$left" ] || fail "left behind: $left"
awk "BEGIN { exit !($share >= 0.9) }"
