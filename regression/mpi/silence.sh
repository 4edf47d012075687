#!/bin/sh
# A rank that is stopped, in training or before it, ends the job with 5 and is named with its host, with what it did when
# it was last heard of, and who waits for it. One that lives but comes to no end of reading a file says so
# and ends the job. A job that is suspended as a whole goes on.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
start() { # <pattern to wait for> <flag...>
  pattern=$1
  shift
  mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set training.steps=1000000 --set training.heartbeat_timeout_s=3 "$@" > log 2>&1 &
  job=$!
  for _ in $(seq 600); do
    if grep -q "$pattern" log; then return; fi
    sleep 0.05
  done
  cat log
  echo "never said '$pattern'"
  exit 1
}
one_falls_silent() { # <what it and those that wait for it do>
  sleep 1  # in which others hear of it
  kill -STOP "$(pgrep -P "$job" | sed -n 3p)"
  code=0
  wait "$job" || code=$?
  cat log
  [ "$code" -eq 5 ] || { echo "expected exit code 5, got $code"; exit 1; }
  grep -q "rank [0-3] on $(hostname) has sent no heartbeat for 3" log || { echo "nobody named it"; exit 1; }
  grep -Eq "last activity was $1; ranks? [0-3](, [0-3])* waits? for it, rank [0-3] in $1" log ||
    { echo "nobody said what it did, or who waits for it"; exit 1; }
}

start "$a_step" --set "$profile"
processes="$(pgrep -P "$job") $job"
kill -STOP $processes
sleep 6
kill -CONT $processes
sleep 2
kill -0 "$job" || { cat log; echo "a suspended job was ended"; exit 1; }
one_falls_silent 'stage [0-9]*, step [0-9]*: [a-z0-9_]*[: ].*'

# One that lives, but waits for ever in front of a file.
stands_still() { # <rank> <what it does> <flag...>
  code=0
  rank=$1 doing=$2
  shift 2
  mpirun -n 4 --oversubscribe ${hanging-} "$BRUME" run "$deck" --set output.directory=still --set training.heartbeat_timeout_s=2 "$@" > log 2>&1 || code=$?
  [ "$code" -eq 5 ] && grep -q "rank $rank on $(hostname) made no progress for [4-9].* s in $doing: a file system" log ||
    { cat log; echo "a rank before a file that does not answer: exit code $code"; exit 1; }
}
mkfifo pipe
stands_still 0 'reading pipe' --set "$profile" --plan pipe
[ "$(grep -c brume: log)" -eq 1 ] || { cat log; echo "more than one rank spoke"; exit 1; }
hanging="env LD_PRELOAD=$BRUME_HANGING_FILE BRUME_HANGS_AT=train.tok BRUME_HANGS_RANK=2"
stands_still 2 'opening data train.tok  valid.tok' --set "$profile"

export XDG_CACHE_HOME=$PWD/cache
start 'measuring this machine' --set output.directory=measured
one_falls_silent 'reading or measuring the profile'
