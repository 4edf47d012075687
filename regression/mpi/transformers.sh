#!/bin/sh
# The Transformers library loads what is exported: each imported model gives its logits to the bit, with its own
# config.json and with one of ours, and one that was trained further the loss that the training saw, and the
# log-likelihoods of completions.
# $BRUME_PYTHON (default: python3) must have torch and transformers 5, else this is skipped: older ones do not
# understand the config.json that newer ones write.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
python=${BRUME_PYTHON:-python3}
"$python" -c 'import torch, transformers; assert transformers.__version__ >= "5"' 2> /dev/null ||
  { echo "$python has no transformers of version 5"; exit 77; }
export HF_HUB_OFFLINE=1
ask() { "$python" "$BRUME_REGRESSION_DIR/pytorch/exported.py" "$@"; }
models=$BRUME_REGRESSION_DIR/data/hugging_face

# What a config.json means where it leaves a key out.
"$python" "$BRUME_REGRESSION_DIR/pytorch/config_classes.py" ||
  { echo "keys in src/families differ from those of this version of the library"; exit 1; }

pairs=
for model in "$models"/*; do
  name=$(basename "$model")
  case $name in *_nf4* | *_mxfp4 | *_fp8) continue ;; esac # the library would need other packages
  "$BRUME" import hf "$model" -o "$name"
  "$BRUME" export hf "$name" -o "$name/kept" --max-shard 20kB
  rm -r "$name/hf"
  mpirun -n 2 --oversubscribe "$BRUME" export hf "$name/checkpoints/step-0" -o "$name/new"
  pairs="$pairs $model $name/kept $model $name/new"
done
ask same $pairs

# Eight windows of 19 tokens, which are read in an order of their own, and one token more.
tail -c +65 valid.tok | head -c $((2 * (8 * 19 + 1))) > few.u16
for name in gpt2 llama_grouped; do
  mpirun -n 4 --oversubscribe "$BRUME" run $name/deck.toml --set "$profile" --set training.precision=fp32 \
    --set training.steps=5 --set training.optimizer.lr=1e-3 --set data.train=train.tok --set data.valid=few.u16 \
    --set data.order=sequential --set data.eval_sequences=8 --set cluster.devices_per_node=4
  "$BRUME" export hf $name -o $name/trained
  h5dump -y -m %.17g -d /evaluations/loss $name/run.h5 | sed -n '/DATA/,/}/p' | grep -oE '[0-9]+\.[0-9]+' > ours
  ask loss $name/trained few.u16 > theirs
  paste ours theirs | awk '{ d = ($1 - $2) / $2; if (d < 0) d = -d; print "ours", $1, "Transformers", $2; n++ }
    END { exit !(n == 1 && d <= 1e-5) }'
done

cp "$models/gpt2/tokenizer.json" gpt2/trained
lines=$models/gpt2/completions.jsonl
"$BRUME" eval gpt2/trained --completions "$lines" > ours
ask likely gpt2/trained "$lines" > theirs
same_likelihoods ours theirs
