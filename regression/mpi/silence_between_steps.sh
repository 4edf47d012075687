#!/bin/sh
# A rank that is stopped between steps, in an evaluation or while a checkpoint is written, the last one too, ends the
# job with 5 and is named with what it did; so are those that wait for it. Three jobs at once, which mostly wait.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"

start() { # <name> <flag...>
  name=$1
  shift
  timeout 60 mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set "output.directory=$name" \
    --set output.checkpoint_every=1 --set training.silence_limit_s=3 "$@" > "$name.log" 2>&1
}
start_with_disk() { # <step in whose checkpoint rank 2 is stopped> <name>
  LD_PRELOAD=$BRUME_HANGING_FILE BRUME_STOPS=1 BRUME_HANGS_RANK=2 BRUME_HANGS_AT="step-$1.tmp/rank-2.h5" start "$2"
}
ended() { # <name> <process> <what rank 2 did>
  code=0
  wait "$2" || code=$?
  said="rank 2 on $(hostname) has given no sign of life for 3.* last heard of in stage [0-9], step $3[^;]*"
  said="$said; ranks 0, 1, 3 wait for it, rank 0 in stage 0, step $3"
  [ "$code" -eq 5 ] && [ "$(grep -c 'brume:' "$1.log")" -eq 1 ] && grep -q "$said" "$1.log" ||
    { cat "$1.log"; echo "$1: exit code $code"; exit 1; }
}

start_with_disk 4 early &
early=$!
start_with_disk 12 late &
late=$!
# Long enough to be met, whose end nobody sees.
start evaluation --set data.eval_every=1 --set data.eval_sequences=1000000 &
evaluation=$!
for _ in $(seq 600); do
  if grep -q "$a_step" evaluation.log; then break; fi
  sleep 0.05
done
sleep 1
kill -STOP "$(pgrep -P "$(pgrep -P "$(pgrep -P "$evaluation")")" | sed -n 3p)"

ended early $early '5: writing a checkpoint'
ended late $late '12: writing a checkpoint'
ended evaluation $evaluation '1: evaluating'
