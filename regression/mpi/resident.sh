#!/bin/sh
# Many small steps leave the resident set as it is: after the first quarter no rank's peak grows by more than
# 3 MiB, of which 2.25 MiB are a pool that Open MPI enlarges once, when a sign of life meets other messages (in
# twenty runs at most once a rank); rank 0, which keeps up to 2048 rows of run.h5 and builds its image, by 6.5 MiB.
set -eu
steps=${BRUME_STEPS:-1600}
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
tiny_job --set training.steps="$steps" \
  --set output.checkpoint_every=$((steps / 8)) --set data.eval_every=$((steps / 8)) \
  --set output.log_every=$((steps / 8)) --set output.trace=false
h5dump -y -w 1 -d /steps/peak_resident_bytes -o peaks run/run.h5 > /dev/null
grep -oE '[0-9]+' peaks |
  awk -v steps="$steps" '{ rank = (NR - 1) % 4; last[rank] = $1; if (NR <= steps) early[rank] = $1 }
    END {
      if (NR != 4 * steps) { print "expected", 4 * steps, "numbers, found", NR; exit 1 }
      for (rank = 0; rank < 4; ++rank) {
        grown = last[rank] - early[rank]
        print "rank", rank, "grew by", grown, "bytes from", early[rank]
        if (early[rank] <= 0 || grown > 3145728 + (rank == 0 ? 3670016 : 0)) bad = 1
      }
      exit bad
    }'
