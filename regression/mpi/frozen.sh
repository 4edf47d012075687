#!/bin/sh
# Frozen blocks: the same losses under plans of one stage, searched and given, and of two; a checkpoint without
# their state, from which more of the model may be trained; less memory. Frozen parts of blocks train alike.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
. "$BRUME_REGRESSION_DIR/losses.sh"
sed '/^optimizer /d' "$deck" > usual.toml
printf '\n[training.optimizer]\nlr = 3e-3\nwarmup_steps = 2\n' >> usual.toml
usual=usual.toml
frozen() { # <deck> <pattern>...
  cp "$usual" "$1"
  out=$1; shift
  for pattern; do printf '\n[[training.optimizer.groups]]\npattern = "%s"\nfrozen = true\n' "$pattern" >> "$out"; done
}
frozen frozen.toml 'embedding.*' 'layers.[0-2].*'
deck=frozen.toml
knobs='zero_level = 3
weight_offload_ratio = 0.5
grad_offload_ratio = 0.5
optim_offload_ratio = 0.5
act_offload_ratio = 1.0
full_recompute_layers = 1'
plan "$knobs" 4 - 2 2 > one.toml
plan "$knobs" 2 - 1 2 2 - 2 1 > two.toml
tiny_job --set output.directory=searched
for name in one two; do
  tiny_job --set output.directory=$name --plan $name.toml --steps 5
  tiny_job --set output.directory=$name --plan $name.toml
  same searched $name 1e-5
done
deck=$usual tiny_job --set output.directory=whole --steps 1
[ "$(losses whole | head -1)" = "$(losses searched | head -1)" ] || fail "the first loss is another one"

# What was not trained has no state in a checkpoint.
kinds() { grep -o "\"$2[a-z0-9.]*\",\"[mv]\"" "$1/checkpoints/step-12/manifest.json" | wc -l; }
[ "$(kinds searched layers.3)" -gt 0 ] && [ "$(kinds searched head)" -gt 0 ] || fail "moments are missing"
[ "$(kinds searched layers.2)" -eq 0 ] && [ "$(kinds searched embedding)" -eq 0 ] || fail "frozen parameters have moments"

# More is trained from a checkpoint on, in another precision too.
frozen less.toml 'embedding.*'
cp -r searched further
deck=less.toml tiny_job --set output.directory=further --set training.steps=16 --set training.precision=bf16
[ "$(losses further | wc -l)" -eq 16 ] || fail "does not go on with more trained"

memory() { "$BRUME" analyze "$1" --set "$profile" --plan one.toml --json | sed -n 's/^ *"peak_backward_bytes": \([0-9]*\),*/\1/p'; }
echo "memory $(memory frozen.toml) of $(memory "$usual")"
[ "$(memory frozen.toml)" -lt "$(memory "$usual")" ] || fail "nothing was saved"

# Parts of blocks: other plans train alike, and they have no moments.
frozen parts.toml 'embedding.*' '*norm*' 'layers.2.*' '*.mlp.out.*'
deck=parts.toml
tiny_job --set output.directory=parts
tiny_job --set output.directory=other --plan two.toml
same parts other 1e-5
[ "$(kinds parts layers.0.norm)" -eq 0 ] && [ "$(kinds parts layers.2)" -eq 0 ] || fail "frozen parts have moments"
[ "$(kinds parts layers.0.att)" -gt 0 ] && [ "$(kinds parts layers.3.mlp.in)" -gt 0 ] || fail "moments are missing"
deck=$usual
tiny_job --set output.directory=parts --set training.steps=16
[ "$(losses parts | wc -l)" -eq 16 ] || fail "does not go on with all trained"
"$BRUME" check parts.toml 2>&1 | grep -q 'embedding without gradients, optimizer state and backward; .* without gradients and optimizer state$' ||
  fail "check does not say what is frozen"

# The first update of what is trained anew moves it by the learning rate, as AdamW's from the first step on.
printf '\n[[training.optimizer.groups]]\npattern = "head.weight"\nfrozen = true\n' > head.group
sed '/^\[training.optimizer\]$/,$d' "$usual" > head.toml
printf '\n[training.optimizer]\nlr = 1e-3\nschedule = "constant"\nweight_decay = 0.0\nclip_norm = 0.0\nbeta2 = 0.999\n' >> head.toml
cat head.toml head.group > head_frozen.toml
one() { "$BRUME" run "$@" --set "$profile" --set cluster.devices_per_node=1 --set model.tied_head=false --set output.directory=head; }
one head_frozen.toml
one head.toml --steps 13 --set training.steps=13
head_weights() { # <step>: of the file that has them, whose slabs a line of the manifest lists in order
  line=$(grep '\["head.weight","weight"' "head/checkpoints/step-$1/manifest.json")
  file=$(echo "$line" | sed 's/.*"name":"\([^"]*\)".*/\1/')
  number=$(echo "$line" | grep -o '\["[a-z0-9._]*","[a-z]*"' | grep -n '"head.weight","weight"' | cut -d: -f1)
  h5dump -y -m %.9g -d "/slabs/$((number - 1))" "head/checkpoints/step-$1/$file" | sed -n '/ DATA {/,/}/p' |
    grep -oE -- '-?[0-9]+\.?[0-9]*(e-[0-9]+)?'
}
head_weights 12 > a
head_weights 13 > b
paste a b | awk '{ d = ($1 - $2) / 1e-3; if (d < 0) d = -d; sum += d } END { print "moved by", sum / NR; exit !(NR > 1000 && sum / NR > 0.9 && sum / NR < 1.1) }' ||
  fail "the first update of an unfrozen head is not of its first step"

# Frozen weights of an fp32 model go as they came, though layers compute in bf16: only the last norm's two vectors change.
"$BRUME" import hf "$BRUME_REGRESSION_DIR/data/hugging_face/gpt2" -o own > log 2>&1 || { cat log; fail "import"; }
mpirun -n 2 --oversubscribe "$BRUME" run own/deck.toml --set "$profile" --set training.precision=bf16 --set training.steps=2 \
  --set data.train=train.tok --set data.valid= --set training.optimizer.lr=1e-2 --set cluster.devices_per_node=2 \
  --set 'training.optimizer.groups=[{pattern="embedding.*", frozen=true}, {pattern="layers.*", frozen=true}]'
for step in 0 2; do "$BRUME" export hf "own/checkpoints/step-$step" --dtype f32 -o "out-$step" > log 2>&1 || { cat log; fail "export"; }; done
changed=$(cmp -l out-0/model.safetensors out-2/model.safetensors | wc -l)
[ "$changed" -gt 0 ] && [ "$changed" -le $((2 * 45 * 4)) ] || fail "$changed bytes changed"

# Checkpoints of an adapter link to the imported file; they resume, and export, without it.
for steps in 2 4; do
  mpirun -n 2 --oversubscribe "$BRUME" run own/deck.toml --set "$profile" --set model.weights=own/checkpoints/step-0 \
    --set training.adapter.rank=2 --set training.steps=4 --steps $steps --set data.train=train.tok --set data.valid= \
    --set cluster.devices_per_node=2 --set output.directory=adapter
  file=adapter/checkpoints/step-$steps/frozen-0.h5
  [ own/checkpoints/step-0/rank-0.h5 -ef "$file" ] || fail "$file is no link to the imported weights"
done
[ "$(ls adapter/checkpoints/step-4 | tr '\n' ' ')" = 'frozen-0.h5 manifest.json rank-0.h5 rank-1.h5 ' ] || fail "other files"

# A table that an adapter's file replaces is none of these weights, though it is frozen then.
adapt() {
  mpirun -n 2 --oversubscribe "$BRUME" run own/deck.toml --set "$profile" --set model.weights=own/checkpoints/step-0 \
    --set training.adapter.rank=2 --set 'training.adapter.modules_to_save=["embedding.position"]' --set training.steps=2 \
    --set data.train=train.tok --set data.valid= --set cluster.devices_per_node=2 --set output.directory="$@"
  "$BRUME" export hf "$1" -o "$1/peft" > log 2>&1 || { cat log; fail "export of $1"; }
}
positions() {  # 19 x 45 numbers after the header
  tail -c +$((9 + $(od -An -tu8 -N8 "$1/peft/adapter_model.safetensors"))) "$1/peft/adapter_model.safetensors" | head -c $((19 * 45 * 4))
}
adapt saved
adapt again --set training.adapter.weights=saved/peft --set 'training.optimizer.groups=[{pattern="embedding.*", frozen=true}]'
positions saved > a
positions again | cmp - a || fail "the frozen table is not that of the adapter's file"
mv own moved
"$BRUME" export hf adapter/checkpoints/step-4 --merge -o merged > log 2>&1 || { cat log; fail "export of a checkpoint with links"; }

# Several stages are searched, too; then no bound is claimed.
"$BRUME" plan frozen.toml --set "$profile" --set 'search.stages=[2]' > log 2>&1 || { cat log; fail "no plan of two stages"; }
grep -q '^frozen ' log && ! grep -q "by the model's bound" log || { cat log; fail "what is said of two stages"; }
frozen all.toml '*'
code=0
"$BRUME" plan all.toml --set "$profile" > log 2>&1 || code=$?
[ $code -eq 2 ] && grep -q 'there is nothing to train' log || { cat log; fail "all was frozen"; }
