#!/bin/sh
# A job that goes on removes its checkpoint between the time that another one finds it whole and the time that it reads it:
# `eval` and `export hf` say so and read the newest one that is there.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
tiny_job --steps 8 --set output.checkpoint_every=4 > log 2>&1
left=run/checkpoints/step-8
loses() { # <command...>: reads step-4, because step-8 leaves
  LD_PRELOAD="$BRUME_LEAVING_CHECKPOINT_LIBRARY" BRUME_LEAVING_CHECKPOINT=$left "$@" > out 2> log || { cat log; exit 1; }
  grep -q "$left: was removed while it was read" log || { cat log; echo "nobody said so"; exit 1; }
  mv $left.gone $left
}
loses "$BRUME" eval run --sequences 4 --json
mv $left other
"$BRUME" eval run --sequences 4 --json 2> log > expected
mv other $left
[ "$(sed 's/.*"loss":\([^,]*\),.*/\1/' out)" = "$(sed 's/.*"loss":\([^,]*\),.*/\1/' expected)" ] ||
  { cat out expected; echo "another checkpoint was read"; exit 1; }
loses "$BRUME" export hf run -o model
grep -q 'model: the model after 4 steps' log
