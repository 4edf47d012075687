#!/bin/sh
# Requests to stop, whenever they come: before the first step they end the job with 75; one that is delivered
# twice is one; a second one ends it at once with 71; while the last checkpoint is written it is finished. A request
# to save makes a checkpoint, and training goes on.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
long="--set training.steps=100000"

start() { # <name> <flag...>: a job in the background, its output in <name>.log
  log=$1.log
  shift
  mpirun -n 4 --oversubscribe "$BRUME" run "$deck" "$@" > "$log" 2>&1 &
  job=$!
}
wait_for() { # <pattern>
  for _ in $(seq 600); do
    if grep -q "$1" "$log"; then return; fi
    sleep 0.05
  done
  cat "$log"
  echo "never said '$1'"
  exit 1
}
ranks() { pgrep -P "$job"; }
ends_with() { # <code>
  code=0
  wait "$job" || code=$?
  cat "$log"
  [ "$code" -eq "$1" ] || { echo "expected exit code $1, got $code"; exit 1; }
}
has_stopped() {
  stopped=$(sed -n 's/^stopped after \([0-9]*\) of.*/\1/p' "$log")
  [ -f "$1/checkpoints/step-$stopped/manifest.json" ] || { echo "no checkpoint of step '$stopped'"; exit 1; }
}

# While the machine is measured, which takes seconds.
XDG_CACHE_HOME=$PWD/cache start measuring $long
wait_for 'measuring this machine'
kill -USR1 "$job"
ends_with 75
grep -q 'before the first step' "$log"
[ ! -e run/lock ] || { echo "a stop counts as a kill"; exit 1; }

# mpirun passes on what everybody has got already.
start twice --set "$profile" $long --set output.directory=twice
wait_for "$a_step"
kill -USR1 "$job" $(ranks)
ends_with 75
has_stopped twice
grep -q 'of 100000 steps because of a signal; start the same job again' "$log"

# Saved on request, and trained on.
start save --set "$profile" $long --set output.checkpoint_every=0 --set output.directory=save
wait_for "$a_step"
kill -USR2 "$job" $(ranks)
for _ in $(seq 600); do
  saved=$(ls save/checkpoints 2> /dev/null | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | head -n 1)
  [ -z "$saved" ] || break
  sleep 0.05
done
[ -n "$saved" ] || { echo "nothing was saved"; exit 1; }
wait_for "^ *$((saved / 4 * 4 + 8)) "
kill -USR1 "$job"
ends_with 75
has_stopped save

# A second request, while the disk takes its time for the first one's checkpoint.
start again --set "$profile" $long --set output.directory=again
wait_for "$a_step"
kill -STOP "$(ranks | head -n 1)"
kill -USR1 $(ranks | tail -n 3)
sleep 2.5
kill -USR1 $(ranks | tail -n 3)
ends_with 71
grep -q 'stopped at once by a second signal' "$log" || [ "$(grep -c 'brume:' "$log")" -eq 0 ]

# After the last step, in the last write; the trace is written after the last checkpoint.
for wish in USR1 TERM INT; do
  start "late$wish" --set "$profile" --set output.directory="late$wish"
  wait_for '^ *12  '
  kill -$wish $(ranks) 2> /dev/null || true
  ends_with 0
  [ -f "late$wish/checkpoints/step-12/manifest.json" ] || { echo "the last checkpoint is lost"; exit 1; }
done
