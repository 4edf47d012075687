#!/bin/sh
# Experts divided over tensor-parallel ranks, data-parallel ranks and both, with gathered or sent tokens, a shared expert,
# corrections of the choice that steps move, and more copies of tokens than there is room for: the losses of one rank;
# checkpoints go on under another division.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
. "$BRUME_REGRESSION_DIR/losses.sh"
sed '/^family /d; /^ffn_size /d; /^linear_bias /d; /^qkv_bias /d' "$deck" > experts.toml
sed -i 's/^\[model\]$/[model]\nfamily = "llama"\nnum_experts = 4\nexpert_ffn_size = 32\nshared_expert_ffn_size = 16\nshared_expert_gate = true\nbalance_loss = 0.01\nrouter = "sigmoid"\nbalance = "bias"\nbalance_rate = 0.02\nrank_load_factor = 1.0/' experts.toml
deck=experts.toml
plan 'ep = 1' 4 - 1 4 > cut.toml
plan 'ep = 2
zero_level = 3' 4 - 2 2 > tensor.toml
plan 'ep = 4
dispatch_tokens = 1
zero_level = 1
full_recompute_layers = 2' 4 - 2 2 > both.toml
plan 'ep = 2
zero_level = 1
optim_offload_ratio = 0.5' 2 - 2 1 2 - 2 1 > data.toml
mpirun -n 1 "$BRUME" run "$deck" --set "$profile" --set output.directory=one --set cluster.devices_per_node=1
for name in cut tensor both data; do
  tiny_job --set output.directory=$name --plan $name.toml --steps 5
  other=data
  [ $name != data ] || other=both
  tiny_job --set output.directory=$name --plan $other.toml
  same one $name 1e-5
done
rounds=$(grep -o '"expert_rounds": *[0-9.]*' both/metrics.jsonl | grep -vc ': *1.0*$' || true)
[ "$rounds" -gt 0 ] || fail "no step took more rounds than one"
grep -q '"idle_experts": *[0-9]' both/metrics.jsonl || fail "no share of experts without tokens"

# Losses without the copies' own loss are others: the check above can fail.
tiny_job --set output.directory=uneven --set model.balance_loss=0 --plan both.toml
! (same one uneven 1e-5 > log) || fail "balance_loss changes nothing"
