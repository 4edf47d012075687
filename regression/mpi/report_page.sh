#!/bin/sh
# The page of a pipeline that was resumed, and had steps without an update before, has all pictures and marks in a browser.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
. "$BRUME_REGRESSION_DIR/browser.sh"
plan 'zero_level = 1' 2 - 2 1 2 - 2 1 > plan.toml
# In fp16 gradients this much too large are infinite in each step; a resumed job scales them down.
job() { tiny_job --plan plan.toml --set training.precision=fp16 "$@" > log 2>&1 || { cat log; exit 1; }; }
job --steps 3 --set training.loss_scale=1099511627776
job --set training.loss_scale=1024
"$BRUME" report run -o page.html
has_browser || exit 77
in_browser page.html
pictures '<figure>' 6
pictures 'class="line c' 10      # one each, two of the step's time, one a rank of memory
pictures '<circle' 2             # evaluations
pictures 'class="mark"' 6        # the resume, on each
pictures 'class="mark fault"' 12 # steps 1 and 2 without an update; 3 is where the resume is
pictures 'class="lanes"' 4       # measured and predicted, of two stages
pictures 'class="bar"' 2
pictures 'class="stages"' 1
pictures '<li>[^<]*not finite, no update' 3
