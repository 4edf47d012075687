#!/bin/sh
# Weights that the Transformers library saved: imported, or named in a deck, a training begins with the same
# bits under the same plan, and from what it wrote another one begins.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | sed -n '/DATA/,/}/p' | grep -oE '[0-9]+\.[0-9]+'; }
fail() { echo "$*"; exit 1; }
same() { [ "$(losses "$1")" = "$(losses "$2")" ] || { losses "$1"; losses "$2"; fail "$1 and $2 differ"; }; }
model=$BRUME_REGRESSION_DIR/data/hugging_face/llama_grouped
cp -r "$model" model
echo '{"a": "tokenizer"}' > model/tokenizer.json
sizes="--set cluster.devices_per_node=4 --set cluster.memory_gib=0.5 --set training.steps=4"
train() { mpirun -n 4 --oversubscribe "$BRUME" run "$@" --set "$profile" --set data.train=train.tok --set data.valid= $sizes; }

plan 'zero_level = 3
optim_offload_ratio = 0.5' 1 - 2 1 1 - 2 1 > plan.toml
"$BRUME" import hf model -o imported
mpirun -n 3 --oversubscribe "$BRUME" import hf "$model" -o by_three
[ -s imported/hf/config.json ] || fail "config.json was not kept"
# Values take the bytes that they had.
h5dump -H imported/checkpoints/step-0/rank-0.h5 | grep -A1 DATATYPE | grep -q '16-bit little-endian floating-point' ||
  fail "bf16 has grown"
train imported/deck.toml --plan plan.toml
train by_three/deck.toml --plan plan.toml --set output.directory=by_three
same imported by_three
[ -d imported/checkpoints/step-0 ] || fail "the imported weights are gone"
train by_three/deck.toml --plan plan.toml --set output.directory=by_three --steps 5 2>&1 | grep -q 'after 4 steps' ||
  fail "did not resume"

# The same by a key of the deck: a model, a run directory, one of its checkpoints.
cat > deck.toml <<END
[model]
weights = "model"
[training]
steps = 4
global_batch = 8
precision = "bf16"
optimizer.lr = 2e-5
[data]
train = "train.tok"
[cluster]
devices_per_node = 4
memory_gib = 0.5
host_memory_gib = 1.0
END
train deck.toml --plan plan.toml --set output.directory=named
same imported named
train imported/deck.toml --plan plan.toml --set output.directory=again --set model.weights=imported/checkpoints/step-0
same imported again
train imported/deck.toml --set output.directory=further --set model.weights=imported
[ "$(losses further | head -1)" != "$(losses imported | head -1)" ] || fail "did not begin with what was trained"

# An adapter begins beside an imported model, or one that is named, with terms of zero.
"$BRUME" import hf model -o adapted
train adapted/deck.toml --plan plan.toml --set training.adapter.rank=2
train deck.toml --plan plan.toml --set training.adapter.rank=2 --set output.directory=adapted_too
same adapted adapted_too
[ "$(losses adapted | head -1)" = "$(losses imported | head -1)" ] || fail "an adapter's first terms are not zero"
[ "$(losses adapted)" != "$(losses imported)" ] || fail "an adapter trained the whole model"
train adapted/deck.toml --set training.adapter.rank=2 --set model.weights=imported --set output.directory=adapted_on

# It leaves alone, or within the model's weights.
"$BRUME" export hf adapted -o adapter
[ "$(ls adapter | tr '\n' ' ')" = "adapter_config.json adapter_model.safetensors " ] || fail "other files of an adapter"
mpirun -n 2 --oversubscribe "$BRUME" export hf adapted -o merged --merge --max-shard 20kB 2> log
grep -q 'BF16 keeps [0-9.]* % of the change' log || { cat log; fail "nothing about rounding"; }
"$BRUME" eval merged --data valid.tok --sequences 4
for wrong in 'imported none has.no.adapter.to.merge' 'adapted adapter holds.a.model.already'; do
  set -- $wrong
  code=0
  "$BRUME" export hf $1 -o $2 --merge > log 2>&1 || code=$?
  [ $code -eq 2 ] && grep -q "$3" log || { cat log; fail "exit code $code, expected 2 and $3"; }
done

refused() {
  says=$1; shift
  code=0
  train deck.toml --set output.directory=refused --dry-run "$@" > log 2>&1 || code=$?
  [ "$code" -eq 2 ] && grep -q "$says" log || { cat log; fail "expected exit code 2 and '$says'"; }
}
refused 'is neither a Hugging Face model' --set model.weights=nowhere --set model.config="$model/config.json"
refused 'are of another model' --set model.weights=imported --set model.config="$model/../gpt2/config.json"
refused 'has shape \[259, 45\], the model needs \[300, 45\]' --set model.vocab_size=300

# Weights that no step has changed go with sequences of another length; later ones do not, but can be named.
"$BRUME" import hf "$model" -o other_length
"$BRUME" import hf "$model" -o of_eleven --set model.seq_len=11
train other_length/deck.toml --plan plan.toml --set model.seq_len=11
train of_eleven/deck.toml --plan plan.toml
same other_length of_eleven
code=0
train other_length/deck.toml --plan plan.toml > log 2>&1 || code=$?
[ $code -eq 2 ] && grep -q 'set model.weights = "other_length/checkpoints/step-4" and another' log && ! grep -q 'resume none' log ||
  { cat log; fail "another length after steps"; }

# All verbs check a head beside a tied one.
code=0
"$BRUME" eval model --data valid.tok --set model.tied_head=true > log 2>&1 || code=$?
[ $code -eq 2 ] && grep -q 'tensor "lm_head.weight" is not the token table' log || { cat log; fail "eval tied a head"; }

# And out again: what no step has touched has its bytes. A number format of its own, and files in parallel.
"$BRUME" export hf imported/checkpoints/step-0 -o out
mpirun -n 3 --oversubscribe "$BRUME" export hf imported/checkpoints/step-0 -o shards --max-shard 20kB
"$BRUME" export hf named -o named/out
for directory in out shards named/out; do
  cmp model/tokenizer.json $directory/tokenizer.json || fail "$directory has no tokenizer"
  grep -q '"bos_token_id": 1' $directory/config.json || fail "$directory/config.json was not kept"
done
"$BRUME" import hf out -o once_more
"$BRUME" import hf shards -o in_shards
tensors() { h5dump -d "/slabs/$2" "$1/checkpoints/step-0/rank-0.h5" | grep -v '^HDF5'; }
for n in 0 1 2 5 9; do
  [ "$(tensors imported $n)" = "$(tensors once_more $n)" ] || fail "slab $n differs after export"
  [ "$(tensors imported $n)" = "$(tensors in_shards $n)" ] || fail "slab $n differs after export in shards"
done
grep -q '"dtype": "bfloat16"' out/config.json || fail "the number format has changed"
"$BRUME" export hf imported -o wide --dtype f32
[ "$(wc -c < wide/model.safetensors)" -gt "$((19 * $(wc -c < out/model.safetensors) / 10))" ] || fail "not in fp32"
code=0
"$BRUME" export hf imported -o wide 2> log || code=$?
[ $code -eq 2 ] && grep -q 'wide: holds a model already' log || fail "wrote over a model"
code=0
"$BRUME" export hf nowhere -o empty 2> log || code=$?
[ $code -eq 2 ] && grep -q 'nowhere: holds no checkpoints' log || { cat log; fail "exported nothing"; }
