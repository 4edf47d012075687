# To be sourced: goes to a fresh folder with tokens in it; $small is what `brume run` takes for a job on two emulated
# devices with all that can be offloaded.
. "$BRUME_REGRESSION_DIR/plans.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$BRUME" import tokens "$BRUME_REGRESSION_DIR/decks" -o .
plan 'zero_level = 3
full_recompute_layers = 1
weight_offload_ratio = 0.5
grad_offload_ratio = 0.5
optim_offload_ratio = 0.5
act_offload_ratio = 0.5
optim_disk_ratio = 0.25
act_disk_ratio = 0.25' 2 - 2 1 > everything.toml
small="$BRUME_REGRESSION_DIR/decks/tiny.toml --plan everything.toml
  --set cluster.profile=$BRUME_REGRESSION_DIR/decks/profile.toml --set cluster.devices_per_node=2
  --set cluster.disk_gib=0.1 --set cluster.scratch=. --set model.num_layers=2 --set model.seq_len=8
  --set output.checkpoint_every=2 --set output.trace=false"
