#!/bin/sh
# A disk that takes 0.4 s for each of the 8 sequences of a batch: steps are as long as they take from end to end, in the
# metrics and for --max-minutes, and the report names data.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
mkdir data
LC_ALL=C awk 'BEGIN { for (i = 0; i < 8001; i++) printf "%c%c", 65 + (i * i) % 23, 0 }' > data/train.u16
code=0
date +%s.%N > begin
LD_PRELOAD=$BRUME_FAILING_FILES BRUME_SLOW_READ_US=400000 BRUME_FAILING_FOLDER="$(realpath data)" timeout 60 "$BRUME" run "$deck" \
  --set "$profile" --set cluster.devices_per_node=1 --set training.steps=1000 --set data.train=data/train.u16 --set data.valid= \
  --max-minutes 0.15 > log 2>&1 || code=$?
[ "$code" -eq 75 ] || { cat log; echo "exit code $code, expected 75"; exit 1; }
values() { sed -n "s/.*\"loss\".*\"$1\":\([0-9.e+-]*\).*/\1/p;s/.*\"$1\":\([0-9.e+-]*\),.*\"loss\".*/\1/p" run/metrics.jsonl; }
# At least 3.2 s a step, of which all but what a step computes is a wait.
for key in iteration_s data_s; do
  values $key | awk -v key=$key '{ print key, $1 } !($1 > 2.5) { bad = 1 } END { exit bad || NR < 1 }' || { cat log; exit 1; }
done
values tokens_per_s | awk '!($1 < 256 / 3.1) { exit 1 }' || { cat run/metrics.jsonl; echo "too many tokens a second"; exit 1; }
# No step begins that would not end in time if it took as long as those before.
values time > times
values iteration_s | paste times - | awk -v begin="$(cat begin)" '
  ends > 9.5 { print "a step begins that would end after", ends, "s of 9"; exit 1 }
  { sum += $2; ends = $1 - begin + sum / NR }'
grep -q '^data: per step waits .* s for its batch' log || { cat log; exit 1; }
"$BRUME" report run --text > report.txt
grep -q 'of the time steps wait for their batches' report.txt || { cat report.txt; exit 1; }
