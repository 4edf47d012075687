#!/bin/sh
# Sequences that context-parallel ranks cannot cut evenly are padded as each plan needs: the losses are those of one rank, also
# of balanced experts, and checkpoints resume by plans with no padding and with another one. A search pads for degrees of cp
# that do not divide the length, and its state covers both lengths.
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
"$BRUME" analyze "$deck" --plan keys.toml --set "$profile" | grep '^padded  each sequence is padded to 32 tokens'
for order in 'keys data heads' 'heads data keys'; do
  set -- $order
  tiny_job --set output.directory=$1 --plan $1.toml --steps 5
  tiny_job --set output.directory=$1 --plan $2.toml --steps 8
  tiny_job --set output.directory=$1 --plan $3.toml
  same one $1 1e-5
done
tiny_job --set output.directory=searched --set 'search.cp=[4]' > log 2>&1 || { cat log; exit 1; }
grep '^padded  each sequence is padded to 32 tokens' log
same one searched 1e-5
search() { "$BRUME" plan "$deck" --set "$profile" --set 'search.cp=[1, 4]' -o "$1" --search-state state.json; }
search first.toml
search second.toml
cmp first.toml second.toml
