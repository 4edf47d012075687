#!/bin/sh
# An adapter of layers in blocks of 4 and 8 bits: the same losses under several plans, and from a checkpoint on
# under another one; merged weights, evaluation and answers; a run of the whole model is refused.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
. "$BRUME_REGRESSION_DIR/losses.sh"
quantized() { # <format> <directory> [flag...]
  format=$1 directory=$2
  shift 2
  tiny_job --set model.hidden_size=128 --set model.ffn_size=256 --set training.adapter.rank=4 \
    --set training.optimizer.lr=2e-3 --set cluster.memory_gib=0.1 --set model.quantization="$format" --set output.directory="$directory" "$@" > "$directory.log" 2>&1 ||
    { code=$?; cat "$directory.log"; return $code; }
}
knobs='zero_level = 3
weight_offload_ratio = 0.5
grad_offload_ratio = 0.5
optim_offload_ratio = 0.5
full_recompute_layers = 1'
plan "$knobs" 4 - 2 2 > one.toml
plan "$knobs" 2 - 1 2 2 - 2 1 > two.toml
for format in nf4 int8; do
  quantized $format $format
  quantized $format $format-one --plan one.toml --steps 5
  quantized $format $format-one --plan two.toml
  same $format $format-one 1e-5
done
# Below fp32 a checkpoint has the values that were trained with, to the last bit.
quantized nf4 narrow --set training.precision=bf16
quantized nf4 resumed --set training.precision=bf16 --steps 4
quantized nf4 resumed --set training.precision=bf16
same narrow resumed 0
quantized none none
losses none > a
losses nf4 > b
cmp -s a b && fail "nothing was quantized"

# The values of blocks are in checkpoints, and the merged model has them.
"$BRUME" export hf nf4 -o merged --merge > log 2>&1 || { cat log; fail "export"; }
loss() { mpirun -n 2 --oversubscribe "$BRUME" eval "$@" --data valid.tok --sequences 8 --json | grep -o '"loss":[0-9.]*' | cut -d: -f2; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = (a - b) / b; print "losses", a, b; exit !(b > 1 && d * d <= 1e-10) }' || fail "losses differ"; }
near "$(loss nf4)" "$(loss merged --set training.precision=fp32)"
[ "$(loss narrow)" = "$(loss narrow --set model.quantization=none)" ] || fail "another loss of the same values"
[ "$(loss merged)" != "$(loss merged --set model.quantization=nf4)" ] || fail "eval does not quantize"
"$BRUME" generate nf4 --prompt 'set -eu' --max-tokens 8 > of_run
mpirun -n 2 --oversubscribe "$BRUME" generate nf4 --prompt 'set -eu' --max-tokens 8 --tp 2 > of_two
cmp of_run of_two
"$BRUME" generate merged --prompt 'set -eu' --max-tokens 8 --set model.quantization=nf4 > of_merged
[ -s of_merged ] || fail "no answer"

refused() { # <sentence> <flag...>
  code=0 sentence=$1
  shift
  quantized nf4 refused "$@" > log 2>&1 || code=$?
  [ $code -eq 2 ] && grep -qF "$sentence" log || { cat log; fail "not refused: $sentence"; }
}
refused 'model.quantization = "nf4" is for matrices that nothing trains' --set training.adapter.rank=0
refused 'no matrix of this model has rows of a multiple of 64 values' --set model.hidden_size=96 --set model.ffn_size=96
# A base of a run, whatever its format is.
quantized int8 further --set model.weights=nf4
grep -q 'in blocks of int8' further.log || { cat further.log; fail "nothing about the format"; }
plan 'zero_level = 1' 4 - 1 4 > four.toml
refused 'tp = 4 must cut rows of attention.out.weight, which have 128 values, between quantized blocks of 64' --plan four.toml
quantized int8 nf4 --set training.steps=16 > log 2>&1 && fail "another format resumes"
grep -q 'trained with another model.seq_len or model.quantization' log || { cat log; fail "another format"; }
