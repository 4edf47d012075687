#!/bin/sh
# Sequences that context-parallel ranks cannot share evenly: the refusal names the remedy; with padding, the losses are those
# of one rank without it, also of balanced experts, and checkpoints resume without padding and with another one.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
. "$BRUME_REGRESSION_DIR/losses.sh"
sed '/^family /d; /^ffn_size /d; /^linear_bias /d; /^qkv_bias /d; /^seq_len /d' "$deck" > padded.toml
sed -i 's/^\[model\]$/[model]\nfamily = "llama"\nseq_len = 29\nnum_experts = 4\nexpert_ffn_size = 32\nbalance_loss = 0.05\nz_loss = 0.01\nrouter = "sigmoid"\nbalance = "bias"\nbalance_rate = 0.02/' padded.toml
deck=padded.toml
# A plan of 4 data-parallel ranks becomes one of 4 context-parallel ones.
shared() { # <exchange>
  sed "s/^dp = 4$/dp = 1\ncp = 4\ngather_keys = $1/; s/^microbatch = 0$/microbatch = 1/; s/^microbatches = 4$/microbatches = 8/"
}
plan 'zero_level = 1' 4 - 4 1 | shared 1 > keys.toml
plan 'zero_level = 2' 4 - 4 1 | shared 0 > heads.toml
plan 'ep = 2' 2 - 2 1 2 - 2 1 > data.toml
mpirun -n 1 "$BRUME" run "$deck" --set "$profile" --set output.directory=one --set cluster.devices_per_node=1
refused_soon 2 'Set model.pad_to_multiple_of = 8' "$BRUME" analyze "$deck" --plan keys.toml --set "$profile"
for name in keys heads; do
  tiny_job --set output.directory=$name --set model.pad_to_multiple_of=8 --plan $name.toml --steps 5
  tiny_job --set output.directory=$name --plan data.toml --steps 8
  tiny_job --set output.directory=$name --set model.pad_to_multiple_of=24 --plan $name.toml
  same one $name 1e-5
done
