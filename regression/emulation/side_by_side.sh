#!/bin/sh
# A job whose devices have transfers of four channels in flight: tensor parallelism, sums over all ranks, messages each
# way. The emulated device checks that their kernels find room side by side, and connections that are made meanwhile.
set -eu
. "$BRUME_REGRESSION_DIR/emulation/small_job.sh"
plan '' 1 - 1 2 1 - 1 2 > plan.toml
job() {
  mpirun -n 4 --oversubscribe "$BRUME" run "$BRUME_REGRESSION_DIR/decks/tiny.toml" --plan plan.toml \
    --set cluster.profile="$BRUME_REGRESSION_DIR/decks/profile.toml" --set model.num_layers=2 --set model.seq_len=8 \
    --set training.steps=2 --set output.checkpoints=false --set output.trace=false > log 2>&1
}
job || { cat log; exit 1; }
grep -q 'through NCCL' log

# What would let ranks wait for each other for ever is refused.
for wish in CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_LAUNCH_ORDER_IMPLICIT=1 NCCL_MAX_CTAS=32; do
  code=0
  (export "${wish?}" && job) || code=$?
  [ $code -eq 2 ] && grep -q "${wish%=*}: .*found ${wish#*=}, expected" log || { echo "$wish: $code"; cat log; exit 1; }
done
