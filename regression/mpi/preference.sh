#!/bin/sh
# Preference tuning on four ranks: pairs come from text, log-probabilities by the initial weights are computed once, a
# resumed training gives the same bits as an unbroken one, another plan the same losses, and what does not fit is refused.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/losses.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
awk 'BEGIN {
  srand(1); split("the a cat dog ran sat on mat sun moon", word)
  for (i = 0; i < 60; ++i) {
    prompt = chosen = rejected = ""
    for (k = 0; k < 3; ++k) prompt = prompt " " word[1 + int(rand() * 10)]
    for (k = 0; k < 3; ++k) chosen = chosen " " word[1 + int(rand() * 3)]
    for (k = 0; k < 1 + i % 9; ++k) rejected = rejected " " word[4 + int(rand() * 7)]
    printf "{\"prompt\": \"Q:%s A:\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", prompt, chosen, rejected
  }
}' > pairs.jsonl
"$BRUME" import tokens pairs.jsonl -o pairs --show 1 > shown 2> packed
grep -q '^packed 60 pairs' packed || { cat packed; fail "no pairs were packed"; }
grep -q '^--- pair 1, rejected$' shown && [ "$(grep -c '⟦.*⟧' shown)" -eq 2 ] || { cat shown; fail "no pair is shown"; }

prefer() { # <directory> <flags...>
  directory=$1; shift
  tiny_job --set output.directory="$directory" --set data.train=pairs/train.tok --set data.valid=pairs/valid.tok \
    --set model.seq_len=48 --set data.eval_every=4 --set training.preference.beta=0.2 "$@"
}
stopped_early() { # <directory> <flags...>: with code 75
  code=0
  prefer "$@" > log 2>&1 || code=$?
  [ "$code" -eq 75 ] || { cat log; fail "exit code $code, expected 75"; }
}
prefer whole > log 2>&1 || { cat log; fail "no training on pairs"; }
cat log
grep -q 'answers cut at the end in sequences of model.seq_len = 48 tokens' log || fail "no word of cut answers"
grep -q "of which .* for the answers' log-probabilities" log || fail "the prediction leaves the evaluation out"
head -2 whole/metrics.jsonl | grep -q '"loss":0.6931471805599453,.*"accuracy":0.0,"margin":0.0' || fail "the first loss is not log 2"
tail -1 whole/metrics.jsonl | grep -q '"valid_loss":.*"valid_accuracy":.*"valid_margin":' || fail "no validation of pairs"
losses whole | awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first / 2) }' || fail "nothing was learned"
h5dump -y -d /steps/accuracy whole/run.h5 | grep -q ' 1,' || fail "no accuracy in run.h5"

prefer parts --steps 5 > log 2>&1
prefer parts > log 2>&1
[ "$(losses whole)" = "$(losses parts)" ] && [ "$(state whole 12)" = "$(state parts 12)" ] || fail "resumed bits differ"
! grep -q 'log-probabilities by' log || { cat log; fail "a resumed job looked for initial weights"; }
prefer elsewhere --resume parts/checkpoints/step-8 > log 2>&1
[ "$(state whole 12)" = "$(state elsewhere 12)" ] || { cat log; fail "bits differ in another directory"; }

# A job that ends before its first step keeps what it has, and another training from the same weights has it all.
stopped_early slow --max-minutes 0.0001
prefer slow > log 2>&1
grep -q 'log-probabilities by the initial weights: 32 of .* from slow/previous-1/reference.bin' log ||
  { cat log; fail "the first batches were computed twice"; }
[ "$(losses whole)" = "$(losses slow)" ] || fail "a reference in two parts differs"
prefer slow --resume none --steps 1 --set training.preference.beta=0.3 > log 2>&1
grep -q 'initial weights: \([0-9]*\) of \1 from slow/previous-2' log || { cat log; fail "the reference was computed again"; }
prefer slow --resume none --steps 1 --set training.seed=2 > log 2>&1
! grep -q 'initial weights: .* from' log || { cat log; fail "other weights had the same reference"; }

plan 'zero_level = 3
full_recompute_layers = 2
weight_offload_ratio = 0.5
grad_offload_ratio = 0.5
optim_offload_ratio = 0.5
act_offload_ratio = 0.5' 4 - 2 2 > everything.toml
prefer other --plan everything.toml > log 2>&1 || { cat log; fail "no training under another plan"; }
same whole other 1e-5
narrow="--plan everything.toml --set training.precision=fp16 --set training.adapter.rank=4"
prefer narrow $narrow > log 2>&1 || { cat log; fail "no training of an adapter in fp16"; }
prefer narrow_parts $narrow --steps 7 > log 2>&1
prefer narrow_parts $narrow > log 2>&1
[ "$(state narrow 12)" = "$(state narrow_parts 12)" ] || fail "resumed bits differ in fp16"

refuses() { # <code> <sentence> <command...>
  expected=$1 sentence=$2 code=0; shift 2
  "$@" > log 2>&1 || code=$?
  [ "$code" -eq "$expected" ] && grep -qF -- "$sentence" log || { cat log; fail "exit code $code, expected $expected and '$sentence'"; }
}
refuses 2 'data.train = pairs/train.tok: holds pairs of answers' tiny_job --set data.train=pairs/train.tok --set output.directory=no
refuses 2 'holds no pairs of answers' prefer no --set data.train=train.tok
refuses 2 'holds no pairs of answers' prefer no --set data.valid=valid.tok
refuses 2 'must be even with training.preference' prefer no --set training.global_batch=9
refuses 2 'training.preference.beta' prefer no --set training.preference.beta=0 --set training.preference.loss=ipo
refuses 2 'belongs to loss = "sigmoid"' prefer no --set training.preference.loss=ipo --set training.preference.label_smoothing=0.1
refuses 2 'holds pairs of answers' "$BRUME" eval whole --data pairs/valid.tok
refuses 2 'has room for an answer' prefer no --set model.seq_len=8
rm parts/reference.bin
rm -r parts/checkpoints/step-12
refuses 2 'parts: has no log-probabilities of this run' prefer parts
cp slow/reference.bin parts
refuses 2 'parts: has no log-probabilities of this run' prefer parts
head -c 700 whole/reference.bin > parts/reference.bin
refuses 6 'parts/reference.bin' prefer parts
