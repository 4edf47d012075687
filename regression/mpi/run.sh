#!/bin/sh
# A whole job on four ranks: it plans, trains, writes its results; stopped and resumed it gives the same
# bits as one never stopped, and under another plan the same losses to 1e-5.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | sed -n '/DATA/,/}/p' | grep -E '[0-9]'; }

tiny_job --set output.directory=whole
h5dump -H whole/run.h5 > header
for word in units deck plan profile version filetype loss iteration_predicted_s placed_device_bytes; do
  grep -q "\"$word\"" header || { echo "run.h5 lacks '$word'"; exit 1; }
done
grep -q '"traceEvents"' whole/trace.json
# A rank's resident set stays within arena + host pool + 100 MB; a device's libraries take more than that.
numbers() { h5dump -y -d "$1" whole/run.h5 | sed -n '/DATA/,/}/p' | grep -oE '[0-9]+' | sort -n | tail -1; }
resident=$(numbers /steps/peak_resident_bytes)
placed=$(($(numbers /memory/placed_device_bytes) + $(numbers /memory/placed_host_bytes)))
[ "$resident" -le $((placed + 100000000)) ] || ! on_host || { echo "resident set $resident, placed $placed"; exit 1; }
ls whole/checkpoints | grep -qx step-12

tiny_job --set output.directory=parts --steps 5
tiny_job --set output.directory=parts
[ "$(losses whole)" = "$(losses parts)" ] || { echo "resumed losses differ"; losses whole; losses parts; exit 1; }
told() { sed -n 's/^{"step":\([0-9]*\),.*\("loss":[^,]*\).*/\1 \2/p' "$1/metrics.jsonl"; }
[ "$(told whole | wc -l)" -eq 12 ] && [ "$(told whole)" = "$(told parts)" ] ||
  { echo "metrics.jsonl of the resumed run differs"; told whole; told parts; exit 1; }

"$BRUME" report whole parts -o page.html && "$BRUME" report whole parts --text > page.txt
grep -q '^ *0 measured ' page.txt || { cat page.txt; exit 1; }
. "$BRUME_REGRESSION_DIR/browser.sh"
if has_browser; then
  in_browser page.html
  pictures '<figure>' 6
  grep -q 'class="lanes"' dom
fi

plan 'zero_level = 3
full_recompute_layers = 2
weight_offload_ratio = 0.5
grad_offload_ratio = 0.5
optim_offload_ratio = 0.5
act_offload_ratio = 0.5
optim_disk_ratio = 0.25
act_disk_ratio = 0.5' 4 - 2 2 > everything.toml
disk="--set cluster.disk_gib=0.1 --set cluster.scratch=scratch"
mkdir scratch
tiny_job --set output.directory=other --plan everything.toml --steps 5 $disk --log json > lines 2> messages || { cat messages; exit 1; }
[ "$(sed -n 's/^{"step":\([0-9]*\),.*"loss":.*}$/\1/p' lines | tr '\n' ' ')" = "1 4 5 " ] || { cat lines; exit 1; }
grep -q '^brume .* on 4 ranks of 1 node ' messages || { cat messages; exit 1; }
[ -z "$(ls scratch)" ] || { echo "left on disk:"; ls scratch; exit 1; }
tiny_job --set output.directory=other --replan --set search.stages='[1]' --set search.tp='[2]'
losses whole > a
losses other > b
paste a b | tr -d ',' | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-5) { print "differs:", $0; bad = 1 } n++ }
  END { if (n < 1) bad = 1; exit bad }'

# In bf16 and fp16 as well: stopped and resumed the same bits.
narrow() { tiny_job --set training.precision="$precision" --plan everything.toml $disk "$@"; }
for precision in bf16 fp16; do
  [ $precision = fp16 ] || grep -q avx512 /proc/cpuinfo || continue
  narrow --set output.directory=$precision
  narrow --set output.directory=pieces-$precision --steps 5
  narrow --set output.directory=pieces-$precision
  [ "$(losses $precision)" = "$(losses pieces-$precision)" ] || { echo "resumed $precision losses differ"; exit 1; }
  [ "$(losses $precision)" != "$(losses other)" ] || { echo "$precision gave the bits of fp32"; exit 1; }
done
h5dump -y -d /steps/loss_scale fp16/run.h5 | grep -q 65536 || { echo "no loss scale in run.h5"; exit 1; }

# Without checkpoints there are none, and the bits of a host's fp32 do not change with tf32. As many tokens as
# almost 12 steps take are 12 steps.
tiny_job --set output.checkpoints=false --set output.directory=plain --set training.tf32=true \
  --set training.steps=0 --set training.tokens=3000 > log 2>&1
cat log
grep -q 'the training has 12 steps' log || { echo "3000 tokens are not 12 steps"; exit 1; }
grep -q '^results in plain: run.h5, metrics.jsonl, trace.json$' log
[ -z "$(ls plain/checkpoints)" ] || { echo "checkpoints were written"; exit 1; }
on_host || exit 0
grep -q 'training.tf32 changes nothing here' log
[ "$(losses whole)" = "$(losses plain)" ] || { echo "losses with tf32 differ"; exit 1; }
