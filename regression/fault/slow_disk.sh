#!/bin/sh
# A disk that takes 2 s for a checkpoint: the last one of a job with --max-minutes is on it before that time is over.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
mkdir -p run/checkpoints
code=0
# Each checkpoint has four calls of fsync in turn: of a file, of the manifest, of two folders.
timeout 60 mpirun -n 2 --oversubscribe -x LD_PRELOAD="$BRUME_FAILING_FILES" -x BRUME_SLOW_SYNC_US=500000 \
  -x BRUME_FAILING_FOLDER="$(realpath run/checkpoints)" sh -c 'date +%s%N > begin; exec "$@"' sh "$BRUME" run "$deck" \
  --set "$profile" --set cluster.devices_per_node=2 --set training.steps=1000000 --set output.directory=run --set output.checkpoint_every=0 \
  --set output.checkpoint_minutes=0.03 --max-minutes 0.15 > log 2>&1 || code=$?
[ "$code" -eq 75 ] || { cat log; echo "exit code $code, expected 75"; exit 1; }
newest=$(ls -d run/checkpoints/step-* | sort -t - -k 2 -n | tail -n 1)
[ "$newest" != run/checkpoints/step-0 ]
end=$(date -r run/checkpoints +%s%N)
took_ms=$(((end - $(cat begin)) / 1000000))
echo "the last checkpoint was there after $took_ms ms"
[ "$took_ms" -le 10000 ] || { tail -n 5 log; echo "that is more than the 9000 ms of the job"; exit 1; }
