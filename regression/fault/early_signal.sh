#!/bin/sh
# A signal that comes before main() has begun: `run` ends with 75 and says so, or goes on where it is to save; other
# verbs do what programs do.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"

ends() { # <signal> <code> <brume's words...>
  signal=$1 want=$2 code=0
  shift 2
  case $signal in INT) number=2 ;; USR1) number=10 ;; USR2) number=12 ;; TERM) number=15 ;; esac
  BRUME_EARLY_SIGNAL=$number LD_PRELOAD=$BRUME_EARLY_SIGNALS "$BRUME" "$@" > log 2>&1 || code=$?
  [ "$code" -eq "$want" ] || { cat log; echo "$signal to brume $1: expected exit code $want, got $code"; exit 1; }
}
one="--set $profile --set cluster.devices_per_node=1 --set cluster.memory_gib=0.1 --set training.steps=2"
for signal in USR1 INT TERM; do
  ends $signal 75 run "$deck" $one
  [ ! -e run ] || { echo "the job began"; exit 1; }
done
ends USR1 75 run "$deck" $one
grep -q 'brume: stopped by a signal before the first step' log
ends USR2 0 run "$deck" $one
[ -f run/checkpoints/step-2/manifest.json ]
for verb in check plan; do
  ends USR1 138 $verb "$deck" --set "$profile"
  ends TERM 143 $verb "$deck" --set "$profile"
done
