#!/bin/sh
# PEFT loads the adapters that are exported and gives the loss that the training saw; merged into the model they
# give the same logits. A training goes on from an adapter of PEFT with PEFT's loss.
# $BRUME_PYTHON (default: python3) must have torch, transformers 5 and peft, else this is skipped.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
python=${BRUME_PYTHON:-python3}
"$python" -c 'from importlib.metadata import version; version("torch"); version("peft"); assert version("transformers") >= "5"' \
  2> /dev/null || { echo "$python has no peft with transformers of version 5"; exit 77; }
export HF_HUB_OFFLINE=1
ask() { "$python" -W ignore "$BRUME_REGRESSION_DIR/pytorch/peft_files.py" "$1" "$models"; }
models=$BRUME_REGRESSION_DIR/data/hugging_face
fail() { echo "$*"; exit 1; }
names='gpt2 llama_grouped llama_tied qwen3 qwen3_moe mixtral neox'
ask make <<END
gpt2 3 6 0 c_attn,c_proj {"modules_to_save":["wpe","ln_2"]}
llama_grouped 4 8 0 q_proj,v_proj
llama_tied 2 4 0 q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj {"rank_pattern":{"self_attn.[qv]_proj":3},"alpha_pattern":{"up_proj|down_proj":1},"modules_to_save":["embed_tokens","input_layernorm"],"ensure_weight_tying":true}
qwen3 2 4 1 q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj
qwen3_moe 3 6 0 q_proj,o_proj {"layers_to_transform":[1]}
mixtral 2 4 0 q_proj {"lora_dropout":0,"target_parameters":["mlp.experts.down_proj","mlp.experts.gate_up_proj"],"rank_pattern":{"mlp.experts.down_proj":3}}
neox 5 2 0 query_key_value,dense_h_to_4h {"rank_pattern":{"query_key_value":2},"modules_to_save":["lm_head","final_layer_norm"]}
END

# A batch has all windows of the file.
cat > deck.toml <<END
[training]
steps = 5
global_batch = 8
precision = "fp32"
optimizer.lr = 1e-2
[data]
train = "few.u16"
valid = "few.u16"
order = "sequential"
eval_sequences = 8
[cluster]
devices_per_node = 4
memory_gib = 0.5
host_memory_gib = 1.0
END
train() { mpirun -n 4 --oversubscribe "$BRUME" run deck.toml --set "$profile" "$@"; }
# Numbers of a run, one a line. <run> <path in run.h5>
numbers() { h5dump -y -m %.17g -d "$2" "$1/run.h5" | sed -n '/DATA/,/}/p' | grep -oE '[0-9]+\.[0-9]+'; }
close() { awk -v a="$1" -v b="$2" 'BEGIN { d = (a - b) / b; exit !(d * d <= 1e-10) }' || fail "$1 and $2 differ"; }

# Trains an adapter and exports it, then goes on from that of PEFT.
# <model> <rank> <alpha> <scaling> <targets> [modules_to_save] [groups] [layers]
adapt() {
  adapter="--set model.weights=$models/$1 --set training.adapter.rank=$2 --set training.adapter.alpha=$3"
  adapter="$adapter --set training.adapter.scaling=$4 --set training.adapter.targets=[$5]"
  adapter="$adapter --set training.adapter.modules_to_save=[${6-}] --set training.adapter.groups=[${7-}]"
  adapter="$adapter --set training.adapter.layers=[${8-}]"
  train $adapter --set output.directory="$1"
  "$BRUME" export hf "$1" -o "$1/adapter"
  "$BRUME" export hf "$1" -o "$1/merged" --merge 2> log
  cat log
  grep -q 'F32 keeps 100 % of the change' log || fail "nothing about rounding"
  train $adapter --set output.directory="$1/on" --set training.adapter.weights="$1/peft" --set training.steps=1
}
adapt gpt2 3 6 standard '"attention.qkv","attention.out","mlp.out"' '"embedding.position","norm2"'
adapt llama_grouped 4 8 standard '"attention.q","attention.v"'
adapt llama_tied 2 4 standard '"*"' '"embedding.token","norm1"' \
  '{pattern="attention.[qv]",rank=3},{pattern="mlp.[uo]*",alpha=1}'
adapt qwen3 2 4 rslora '"attention.*","mlp.*"'
adapt qwen3_moe 3 6 standard '"attention.q","attention.out"' '' '' 1
adapt mixtral 2 4 standard '"attention.q","mlp.experts.*"' '' '{pattern="mlp.experts.out",rank=3}'
adapt neox 5 2 standard '"attention.qkv","mlp.in"' '"head*"' '{pattern="attention.qkv",rank=2}'
for name in $names; do echo "$name"; done | ask check > theirs
for name in $names; do echo "$(numbers "$name" /evaluations/loss) $(numbers "$name/on" /steps/loss)"; done > ours
paste ours theirs | while read -r trained begun trained_peft begun_peft; do
  close "$trained" "$trained_peft" && close "$begun" "$begun_peft"
done

# Ranks, scales and modules that are trained whole come from the files alone.
"$BRUME" eval "$models/llama_tied" --adapter llama_tied/peft --data few.u16 --json > said 2> log || { cat log; fail "no evaluation"; }
close "$(sed 's/.*"loss":\([0-9.]*\).*/\1/' said)" "$(numbers llama_tied/on /steps/loss)"

# An imported model too, whose checkpoint has no adapter.
"$BRUME" import hf "$models/qwen3" -o imported
mpirun -n 4 --oversubscribe "$BRUME" run imported/deck.toml --set "$profile" --set data.train=few.u16 --set data.valid= \
  --set data.order=sequential --set training.steps=1 --set training.precision=fp32 --set cluster.devices_per_node=4 \
  --set cluster.memory_gib=0.5 --set training.adapter.rank=2 --set training.adapter.alpha=4 \
  --set training.adapter.scaling=rslora --set training.adapter.weights=qwen3/peft > log 2>&1 || { cat log; exit 1; }
[ "$(grep -c "'lora_dropout' = 0.1 has no effect" log)" = 1 ] || { cat log; fail "nothing about dropout"; }
close "$(numbers imported /steps/loss)" "$(numbers qwen3/on /steps/loss)"

code=0
train --set model.weights="$models/qwen3" --set training.adapter.rank=3 --set training.adapter.weights=qwen3/peft \
  --set output.directory=other > log 2>&1 || code=$?
[ $code -eq 2 ] && grep -q 'qwen3/peft/adapter_config.json: the term of attention.q has rank 2, .* set rank = 2' log ||
  { cat log; fail "another rank"; }
