#!/bin/sh
# A rank that is stopped between steps, in an evaluation, while a checkpoint is written, the last one too, or the results
# after it, ends the job with 5 and is named with what it did; so are those that wait for it. Four jobs at once, which
# mostly wait.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"

start() { # <name> <flag...>
  name=$1
  shift
  timeout 60 mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set "output.directory=$name" \
    --set output.checkpoint_every=1 --set training.heartbeat_timeout_s=3 "$@" > "$name.log" 2>&1
}
start_with_disk() { # <step in whose checkpoint rank 2 is stopped> <name>
  LD_PRELOAD=$BRUME_HANGING_FILE BRUME_STOPS=1 BRUME_HANGS_RANK=2 BRUME_HANGS_AT="step-$1.tmp/rank-2.h5" start "$2"
}
start_with_results() { # rank 0 is stopped when it writes run.h5 for the last time, which it does after the last checkpoint
  LD_PRELOAD=$BRUME_HANGING_FILE BRUME_STOPS=1 BRUME_HANGS_RANK=0 BRUME_HANGS_AT=.tmp \
    BRUME_HANGS_AFTER=results/checkpoints/step-12/manifest.json start results
}
ended() { # <name> <process> <rank> <where it was last heard of> <who waits> <the first of them, and in what>
  code=0
  wait "$2" || code=$?
  said="rank $3 on $(hostname) has sent no heartbeat for 3.* last activity was $4; ranks $5 wait for it, rank $6"
  [ "$code" -eq 5 ] && [ "$(grep -c 'brume:' "$1.log")" -eq 1 ] && grep -q "$said" "$1.log" ||
    { cat "$1.log"; echo "$1: exit code $code"; exit 1; }
}
rank_2_ended() { # <name> <process> <what it did>
  ended "$1" "$2" 2 "stage [0-9], step $3[^;]*" '0, 1, 3' "0 in stage 0, step $3"
}

start_with_disk 4 early &
early=$!
start_with_disk 12 late &
late=$!
start_with_results &
results=$!
# Long enough to be met, whose end nobody sees.
start evaluation --set data.eval_every=1 --set data.eval_sequences=1000000 &
evaluation=$!
for _ in $(seq 600); do
  if grep -q "$a_step" evaluation.log; then break; fi
  sleep 0.05
done
sleep 1
kill -STOP "$(pgrep -P "$(pgrep -P "$(pgrep -P "$evaluation")")" | sed -n 3p)"

rank_2_ended early $early '5: writing a checkpoint'
rank_2_ended late $late '12: writing a checkpoint'
rank_2_ended evaluation $evaluation '1: evaluating'
ended results $results 0 'stage [0-9], step 12: writing the results' '1, 2, 3' '1 in stage [0-9], step 12: writing the results'
