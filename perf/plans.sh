#!/bin/sh
# Step times of the best plans, free and with narrowed searches, as perf/data/plans.csv:
#   perf/plans.sh build/brume > perf/data/plans.csv
# Narrowed: no offload; ZeRO by data parallelism alone; 1F1B; plans that Megatron-LM can run.
# Other orders than 1F1B and their gain, for twelve jobs:
#   perf/plans.sh build/brume orders
set -eu
brume=$1
inputs=$(dirname "$0")/../inputs
seconds() { # <deck> [flag...]
  deck=$1
  shift
  "$brume" plan "$inputs/$deck.toml" --json "$@" 2> /dev/null |
    sed -n 's/^ *"simulated_s": *\([0-9.e+-]*\),*/\1/p' | head -1 | grep . || echo -
}
chunks="--set search.virtual_stages=[1]"
halves="--set search.zero_bubble=false"
if [ "${2:-}" = orders ]; then
  echo "deck,machine,nodes,batch,free,no virtual stages,no zero bubble,1F1B only"
  # Three families, from 8 devices to 512, from many microbatches to few.
  while read -r deck machine nodes batch; do
    job="$deck --set cluster.machine=$machine --set cluster.nodes=$nodes --set training.global_batch=$batch"
    echo "$deck,$machine,$nodes,$batch,$(seconds $job),$(seconds $job $chunks),$(seconds $job $halves),$(
      seconds $job $chunks $halves)"
  done << JOBS
gpt-6.7b l4-x8 1 64
gpt-6.7b l4-x8 4 128
falcon-7b l4-x8 4 64
llama-8b cloud-a100-40 2 128
llama-8b cloud-a100-40 8 64
gpt-22b cloud-a100-40 4 128
falcon-7b cloud-a100-40 16 128
gpt-22b dgx-a100-80 16 128
llama-70b dgx-a100-80 32 256
llama-70b dgx-h200 8 128
llama-70b dgx-h200 32 256
gpt-22b dgx-h200 64 512
JOBS
  exit
fi
echo "deck,free,1F1B only,no offload,Megatron-LM's space,data parallelism only"
for deck in llama-8b gpt-6.7b; do
  off="--set search.weight_offload=[0.0] --set search.grad_offload=[0.0] --set search.optim_offload=[0.0] --set search.act_offload=[0.0]"
  echo "$deck,$(seconds $deck),$(seconds $deck $chunks $halves),$(
    seconds $deck $off),$(seconds $deck --set search.trainer=megatron),$(seconds $deck --set search.stages=[1] --set search.tp=[1])"
done
