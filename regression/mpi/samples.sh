#!/bin/sh
# A training answers prompts: as `generate` does with its checkpoints, under plans that generation has not, also after a
# resume; its weights have the bits of a training without prompts. Prompts that have no answer are refused early.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
complain() { echo "$1"; cat log; exit 1; }
printf 'void main(\nint a = 1;\n  the \nfor (\nwhile\n' > prompts.txt
{ echo 'virtual_stages = 2'; plan 'zero_level = 3
optim_offload_ratio = 0.5
act_offload_ratio = 0.5' 1 - 2 1 1 - 2 1 1 - 2 1 1 - 2 1; } > plan.toml
answered() { # <flags...>
  tiny_job --plan plan.toml --set training.samples.prompts=prompts.txt --set training.samples.every=4 \
    --set training.samples.max_tokens=9 --set training.samples.temperature=0.8 --set training.samples.seed=3 "$@" > log 2>&1 ||
    complain "no training with prompts"
}
tiny_job --plan plan.toml --set output.directory=plain --steps 8 > log 2>&1 || complain "no training"
answered --steps 4
cp log first
answered --steps 8
grep -q 'samples: 5 prompts on 4 copies of the model, tp 1, in ' log || complain "no word of the plan"
state plain 8 > expected
state run 8 > found
cmp expected found || complain "answers change the training"
answers() { grep -o '"text":.*"tokens":[0-9]*' | sed 's/,"prompt_tokens":[0-9]*//'; }
for step in 4 8; do
  "$BRUME" generate run/checkpoints/step-$step --prompts prompts.txt --max-tokens 9 --temperature 0.8 --seed 3 -o out-$step > out 2>&1 ||
    { cat out; exit 1; }
  sort -t: -k2n out-$step | answers > expected
  grep "^{\"step\":$step,.*\"event\":\"sample\"" run/metrics.jsonl | answers > found
  [ "$(wc -l < found)" -eq 5 ] && cmp expected found || complain "other answers at step $step"
done
grep -q '^      4  sample 1: "void main(" "' first && grep -q '^      8  sample 5: "while" "' log || complain "no answers in the log"
"$BRUME" report run --text > page
[ "$(grep -c '^ *[48]  ".*"  *"' page)" -eq 10 ] || { cat page; exit 1; }

refused() { # <sentence> <flags...>
  sentence=$1
  shift
  code=0
  "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=1 --set output.directory=none --set training.samples.prompts=other "$@" \
    > log 2>&1 || code=$?
  [ "$code" -ne 0 ] && [ "$(grep -c brume: log)" -eq 1 ] && grep -qF "$sentence" log || complain "expected: $sentence"
}
refused 'training.samples.prompts: other: cannot be opened: No such file or directory'
: > other
refused 'training.samples.prompts: other: holds no prompts'
printf 'a\n\377\n' > other
refused 'training.samples.prompts: other:2: is not UTF-8'
printf '%032d\n' 0 > other
refused 'training.samples.prompts: other:1: the prompt has 32 tokens, of which fewer than model.seq_len = 32 fit'
refused "training.samples.tokenizer: other: no tokenizer.json" --set model.vocab_size=300
printf 'a\n' > other
refused 'training.samples: the model and its keys need ' --set model.hidden_size=128 --set cluster.host_memory_gib=0 --set cluster.memory_gib=0.014
