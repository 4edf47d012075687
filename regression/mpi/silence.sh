#!/bin/sh
# A rank that is stopped, in training or before it, ends the job with 5 and is named with its host, and in training with
# what it did when it was last heard of, and who waits for it. A job that is suspended as a whole
# goes on.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
# One that stands still before MPI has started: it takes longest, so the other cases go on meanwhile.
mpirun -n 3 --oversubscribe "$BRUME" run "$deck" --set output.directory=never : -n 1 sh -c 'kill -STOP $$' > never.log 2>&1 &
never=$!

start() { # <pattern to wait for> <flag...>
  pattern=$1
  shift
  mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set training.steps=1000000 --set training.silence_limit_s=3 "$@" > log 2>&1 &
  job=$!
  for _ in $(seq 600); do
    if grep -q "$pattern" log; then return; fi
    sleep 0.05
  done
  cat log
  echo "never said '$pattern'"
  exit 1
}
one_falls_silent() {
  kill -STOP "$(pgrep -P "$job" | sed -n 3p)"
  code=0
  wait "$job" || code=$?
  cat log
  [ "$code" -eq 5 ] || { echo "expected exit code 5, got $code"; exit 1; }
  grep -q "rank [0-3] on $(hostname) has given no sign of life for 3" log || { echo "nobody named it"; exit 1; }
}

start "$a_step" --set "$profile"
processes="$(pgrep -P "$job") $job"
kill -STOP $processes
sleep 6
kill -CONT $processes
sleep 2
kill -0 "$job" || { cat log; echo "a suspended job was ended"; exit 1; }
one_falls_silent
doing='stage [0-9]*, step [0-9]*: [a-z0-9_]*[: ].*'
grep -Eq "last heard of in $doing; ranks? [0-3](, [0-3])* waits? for it, rank [0-3] in $doing" log ||
  { echo "nobody said what it did, or who waits for it"; exit 1; }

export XDG_CACHE_HOME=$PWD/cache
start 'measuring this machine' --set output.directory=measured
one_falls_silent

code=0
wait "$never" || code=$?
# Open MPI 4.1's mpirun may crash when it ends such a job.
{ [ "$code" -eq 5 ] || [ "$code" -eq 139 ]; } && [ "$(grep -c 'brume:' never.log)" -eq 1 ] && grep -q 'MPI has not started within 4.*: a rank was stopped' never.log ||
  { cat never.log; echo "a rank that never started: exit code $code"; exit 1; }
