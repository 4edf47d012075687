#!/bin/sh
# Step times of the best plans, free and with narrowed searches, as perf/data/plans.csv:
#   perf/plans.sh build/brume > perf/data/plans.csv
# Narrowed: no offload; ZeRO by data parallelism alone; 1F1B; plans that Megatron-LM can run.
set -eu
brume=$1
inputs=$(dirname "$0")/../inputs
seconds() { # <deck> [flag...]
  deck=$1
  shift
  "$brume" plan "$inputs/$deck.toml" --json "$@" 2> /dev/null |
    sed -n 's/^ *"simulated_s": *\([0-9.e+-]*\),*/\1/p' | head -1 | grep . || echo -
}
echo "deck,free,1F1B only,no offload,Megatron-LM's space,data parallelism only"
for deck in llama-8b gpt-6.7b; do
  off="--set search.weight_offload=[0.0] --set search.grad_offload=[0.0] --set search.optim_offload=[0.0] --set search.act_offload=[0.0]"
  echo "$deck,$(seconds $deck),$(seconds $deck --set search.virtual_stages=[1] --set search.zero_bubble=false),$(
    seconds $deck $off),$(seconds $deck --set search.trainer=megatron),$(seconds $deck --set search.stages=[1] --set search.tp=[1])"
done
