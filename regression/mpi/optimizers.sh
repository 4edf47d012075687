#!/bin/sh
# Decks with Muon and with moments of 16 bits: the same losses under searched plans and given ones; checkpoints that
# resume under others, in the other format, and from AdamW's; half of the memory; refusals.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
. "$BRUME_REGRESSION_DIR/losses.sh"
sed '/^optimizer /d' "$deck" > muon.toml
printf '\n[training.optimizer]\nname = "muon"\nlr = 1e-2\nwarmup_steps = 2\n' >> muon.toml
adamw=$deck deck=muon.toml
bf16='--set training.optimizer.moments="bf16"'
plan 'zero_level = 3
weight_offload_ratio = 0.5
grad_offload_ratio = 0.5
optim_offload_ratio = 0.5
full_recompute_layers = 1' 4 - 2 2 > one.toml
plan 'zero_level = 1' 2 - 1 2 2 - 2 1 > two.toml
tiny_job --set output.directory=searched
tiny_job --set output.directory=searched16 $bf16
for name in one two; do
  tiny_job --set output.directory=$name --plan $name.toml --steps 5
  tiny_job --set output.directory=$name --plan $name.toml
  same searched $name 1e-5
  tiny_job --set output.directory=${name}16 --plan $name.toml $bf16
  same searched16 ${name}16 2e-4
done
[ "$(losses searched | tail -1)" != "$(losses searched16 | tail -1)" ] || fail "moments of 16 bits changed nothing"

# Matrices have one field of state, other parameters two.
kinds() { grep -o "\"layers.3.$1\",\"[mv]\"" searched/checkpoints/step-12/manifest.json | sort -u | wc -l; }
[ "$(kinds mlp.out.weight)" -eq 1 ] && [ "$(kinds mlp.out.bias)" -eq 2 ] || fail "other fields of state than expected"

# From another format, and from AdamW's moments.
cp -r searched16 further
tiny_job --set output.directory=further --plan one.toml --set training.steps=16
deck=$adamw tiny_job --set output.directory=from_adamw
tiny_job --set output.directory=from_adamw --set training.steps=16
for name in further from_adamw; do [ "$(losses $name | wc -l)" -eq 16 ] || fail "$name did not go on"; done
code=0
deck=$adamw tiny_job --set output.directory=searched --set training.steps=16 > log 2>&1 || code=$?
[ "$code" -eq 2 ] && grep -q 'brume: .*has moments of training.optimizer.name = "muon"' log ||
  { cat log; fail "AdamW went on without its second moment"; }

# In 8 bits, of rows of blocks: the same bits after a resume under the same plan, others go on in another format.
blocks='--set model.hidden_size=128 --set training.optimizer.moments="fp8"'
deck=$adamw
plan 'zero_level = 1
optim_offload_ratio = 0.5' 4 - 2 2 > three.toml
tiny_job $blocks --set output.directory=whole8 --plan three.toml
tiny_job $blocks --set output.directory=parts8 --plan three.toml --steps 5
tiny_job $blocks --set output.directory=parts8 --plan three.toml
[ "$(state whole8 12)" = "$(state parts8 12)" ] || fail "a resume changed moments in 8 bits"
"$BRUME" generate whole8 --prompt a --max-tokens 2 > log 2>&1 || { cat log; fail "no answer after moments in 8 bits"; }
tiny_job --set model.hidden_size=128 --set output.directory=parts8 --plan two.toml --set training.steps=16
[ "$(losses parts8 | wc -l)" -eq 16 ] || fail "moments in 8 bits did not go on in fp32"
refused_soon 2 'has rows of a multiple of 64 values' "$BRUME" check "$deck" --set "$profile" \
  --set training.optimizer.moments=fp8 --set model.ffn_size=96
deck=muon.toml
refused_soon 2 '"fp8" is not for training.optimizer.name = "muon"' "$BRUME" check "$deck" --set "$profile" \
  --set training.optimizer.moments=fp8

memory() { "$BRUME" analyze muon.toml --set "$profile" --plan one.toml "$@" --json | sed -n 's/^ *"node_host_bytes": \([0-9]*\),*/\1/p'; }
echo "host memory $(memory $bf16) of $(memory)"
[ "$(memory $bf16)" -lt "$(memory)" ] || fail "nothing was saved"
refused_soon 2 "'search.host_update' must be [0.0]" mpirun -q -n 4 --oversubscribe "$BRUME" run muon.toml \
  --set "$profile" --set 'search.host_update=[0.5]'
