#!/bin/sh
# What import, export and keys print, and the report of two runs, by its shape, against reviewed texts (shape.sh).
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/golden/shape.sh"
without_terminal=400
said() { ended 0 "$@"; }
data=$BRUME_REGRESSION_DIR/data
fixed="tiny.toml --set cluster.profile=profile.toml"
mpirun -n 4 --oversubscribe "$BRUME" run $fixed --steps 4 > log 2>&1 || { cat log; exit 1; }
cp -r run other
"$BRUME" plan $fixed --set search.trainer=megatron -o plan.toml > log 2>&1 || { cat log; exit 1; }
"$BRUME" export plan $fixed --plan plan.toml --to megatron -o train.sh > log 2>&1 || { cat log; exit 1; }
cp -r "$data/hugging_face/llama_grouped" llama
mkdir notes
cp "$BRUME_REGRESSION_DIR/README.md" "$data/tokenizers/bpe.model" notes

# begun-now is gone before each command.
said import-text "$BRUME" import tokens notes -o bytes
said import-tokens "$BRUME" import tokens notes --tokenizer "$data/tokenizers/gpt2.json" -o tokens
said import-hf "$BRUME" import hf llama -o begun-now
said import-plan "$BRUME" import plan train.sh --from megatron -o back --set cluster.machine=dgx-h100 --set cluster.devices_per_node=4
said export-hf "$BRUME" export hf run -o begun-now
said export-plan "$BRUME" export plan $fixed --plan plan.toml --to megatron
said export-to-a-file "$BRUME" export plan $fixed --plan plan.toml --to megatron -o train.sh
said keys "$BRUME" keys data.
said compared "$BRUME" report run other --text
compare_printed formats
