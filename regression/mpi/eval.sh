#!/bin/sh
# `eval` says what the training's own evaluation said, to the last digit under the same plan, and nearly
# so under others and after an export.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
tiny_job --steps 4 > train.log 2>&1

# The last loss that the training measured on data.valid.
trained=$(h5dump -m "%.17g" -d /evaluations/loss run/run.h5 | sed -n 's/^ *([0-9]*): *\([0-9][0-9.e-]*\)$/\1/p' | tail -1)

loss_of() { # ranks, then eval's arguments
  ranks=$1; shift
  mpirun -n "$ranks" --oversubscribe "$BRUME" eval "$@" --sequences 8 --json 2> eval.log |
    sed -n 's/.*"loss":\([^,}]*\).*/\1/p'
}
# within: how far two losses may be apart
near() {
  awk -v a="$1" -v b="$2" -v most="$3" 'BEGIN { d = a - b; exit !(a > 0 && d <= most && -d <= most) }' ||
    { echo "$4: $1, the training said $2"; cat eval.log; exit 1; }
}
near "$(loss_of 4 run)" "$trained" 0 "same plan"
near "$(loss_of 4 run --set training.seed=7 --set data.order=sequential)" "$trained" 0 "another seed and order"
near "$(loss_of 2 run)" "$trained" 1e-6 "two ranks"
near "$(loss_of 1 run --data valid.tok)" "$trained" 1e-6 "one rank"
"$BRUME" export hf run -o model 2> export.log
near "$(loss_of 2 model --data valid.tok)" "$trained" 1e-6 "exported"

# A loss that the weights decide: fewer sequences give another one.
other=$("$BRUME" eval run --sequences 3 --json 2> eval.log | sed -n 's/.*"loss":\([^,}]*\).*/\1/p')
test "$other" != "$trained"

# A training judges by each sequence once where its file has fewer than it asks for.
LC_ALL=C awk 'BEGIN { for (i = 0; i < 5 * 32 + 1; i++) printf "%c%c", 65 + (i * i) % 23, 0 }' > few.u16
tiny_job --set output.directory=few --set data.valid=few.u16 --set data.eval_sequences=64 --set training.steps=2 > few.log 2>&1
said=$(sed -n 's/.*"valid_loss":\([0-9.e-]*\).*/\1/p' few/metrics.jsonl | tail -1)
every=$(mpirun -n 4 --oversubscribe "$BRUME" eval few --data few.u16 --json 2> eval.log | sed -n 's/.*"loss":\([^,}]*\).*/\1/p')
near "$every" "$said" 1e-9 "each sequence once"

# A mean over nothing is no loss: null and one line, in an evaluation and in a training, which changes no weight.
prompt=$(head -c 600 /dev/zero | tr '\0' q)
echo "{\"prompt\": \"$prompt\", \"completion\": \"a\"}" > pair.jsonl
"$BRUME" import tokens pair.jsonl -o pair --valid 0 2> pair.log
"$BRUME" eval run --data pair/train.tok --sequences 8 --json > eval.out 2> eval.log
grep -q '"loss":null.*"perplexity":null' eval.out && [ "$(grep -c 'to be learned' eval.log)" -eq 1 ] || { cat eval.out eval.log; exit 1; }
tiny_job --set output.directory=pair --set data.train=pair/train.tok --set data.valid=pair/train.tok --set data.order=sequential \
  --set training.steps=2 --set output.keep_best=true > pair.log 2>&1
[ "$(grep -c '"loss":null,"grad_norm":null.*"skipped":true' pair/metrics.jsonl)" -eq 2 ] && grep -q '"valid_loss":null' pair/metrics.jsonl &&
  ! grep -q '"valid_loss"' pair/checkpoints/step-2/manifest.json && [ "$(grep -c '2 of 2 steps had no update: no token' pair.log)" -eq 1 ] ||
  { cat pair.log pair/metrics.jsonl; exit 1; }

refused() { # exit code, sentence, arguments
  code=0; "$BRUME" eval $3 > refused.log 2>&1 || code=$?
  test "$code" = "$1" && grep -q "$2" refused.log || { cat refused.log; exit 1; }
}
refused 2 "holds no checkpoints and no Hugging Face model" nowhere
refused 2 "name a token file by --data" "model"
refused 2 "nowhere.tok" "run --data nowhere.tok"

# Tokens are bytes: as many bits a byte as a token. How likely is "main(" follows from its two parts, alone
# or beside others on two ranks.
mpirun -n 2 --oversubscribe "$BRUME" eval run --sequences 8 > eval.out 2> eval.log
awk '/a token$/ && /bits/ {token = $2} /a byte$/ {byte = $1} END {exit !(token > 0 && token == byte)}' eval.out ||
  { cat eval.out; exit 1; }
cat > lines.jsonl <<'LINES'
{"prompt": "int ", "completion": "main("}
{"prompt": "int ", "completion": "ma"}
{"prompt": "int ma", "completion": "in("}
{"prompt": "a prompt that is far longer than a sequence, of which the beginning is left out ................................................................. int ", "completion": "ma"}
LINES
for ranks in 1 2; do
  mpirun -n $ranks --oversubscribe "$BRUME" eval run --completions lines.jsonl > likely.$ranks 2> eval.log ||
    { cat eval.log; exit 1; }
  sed 's/.*"log_likelihood":\([^,}]*\).*/\1/' likely.$ranks | tr '\n' ' ' |
    awk '{d = $1 - $2 - $3; exit !(NF == 4 && $1 < -1 && d < 1e-4 && d > -1e-4 && $4 < -0.5)}' ||
    { cat likely.$ranks; exit 1; }
done
grep -q '"bytes":5,.*"tokens":5' likely.1
# As Transformers says it, which wrote these lines.
gpt2=$BRUME_REGRESSION_DIR/data/hugging_face/gpt2
cp "$gpt2/completions.jsonl" theirs
for ranks in 1 3; do
  mpirun -n $ranks --oversubscribe "$BRUME" eval "$gpt2" --completions "$gpt2/completions.jsonl" > ours 2> eval.log ||
    { cat eval.log; exit 1; }
  same_likelihoods ours theirs
done
# A run that began with weights of a model finds its tokenizer, of SentencePiece too.
mkdir of_model
cp "$gpt2"/*.safetensors* "$gpt2/config.json" of_model
cp "$BRUME_REGRESSION_DIR/data/tokenizers/bpe.model" of_model/tokenizer.model
"$BRUME" import hf of_model -o imported > /dev/null 2>&1
echo '{"prompt": "<", "completion": ">"}' > few.jsonl
for weights in of_model imported imported/checkpoints/step-0; do
  refused 2 "few.jsonl: its tokenizer makes token" "$weights --completions few.jsonl"
done
rm of_model/tokenizer.model
refused 2 "of_model: no tokenizer.json, tokenizer.model or spiece.model is kept" "of_model --completions few.jsonl"
echo '{"prompt": "", "completion": "a"}' > alone.jsonl
refused 2 "has no token before it" "run --completions alone.jsonl"
echo '{"prompt": "a"}' > half.jsonl
refused 2 "half.jsonl, line 1: has no text" "run --completions half.jsonl"
