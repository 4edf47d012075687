#!/bin/sh
# The quick start keeps its promises: plain data parallelism does not fit, the plan found does, and a GPT
# learns from this project's own text. The profile is fixed, so the plan is too.
set -eu
sources=$BRUME_REGRESSION_DIR/..
deck=$sources/inputs/quickstart.toml
profile=cluster.profile=$BRUME_REGRESSION_DIR/decks/quickstart_profile.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

code=0
"$BRUME" plan "$deck" --set "$profile" --set search.zero_levels='[0]' --set search.full_recompute=false \
  --set search.optim_offload='[0.0]' --set search.act_offload='[0.0]' --set search.tp='[1]' \
  --set search.stages='[1]' 2> refused || code=$?
cat refused
[ "$code" -eq 3 ] || { echo "plain data parallelism: expected exit code 3, got $code"; exit 1; }

"$BRUME" import tokens -o data "$sources/src" "$sources/inc" "$sources/regression" "$sources/README.md"
mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile"
# The text changes with the project, and losses by 0.3; how often each byte comes gives 3.7.
losses() { h5dump -y -m %.17g -d "$1" runs/quickstart/run.h5 | sed -n '/DATA/,/}/p' | grep -oE '[0-9]+\.[0-9]+'; }
losses /steps/loss | awk 'NR == 1 { first = $1 } { last[NR % 10] = $1 } END {
  for (i in last) sum += last[i]
  mean = sum / 10
  print "first loss", first, "mean of the last ten", mean
  exit !(NR >= 60 && first > 5.2 && first < 5.8 && mean < 3.3) }'
losses /evaluations/loss | awk '{ last = $1 } END { print "validation loss", last; exit !(NR >= 1 && last < 3.3) }'

"$BRUME" report runs/quickstart
. "$BRUME_REGRESSION_DIR/browser.sh"
if has_browser; then
  in_browser runs/quickstart/report.html
  pictures '<figure>' 6
  pictures 'class="lanes"' 2
  pictures 'class="stages"' 1
fi

# No rank ever holds more than its plan, the copy that a checkpoint takes, and 100 MB; a device's libraries do.
[ -z "${BRUME_ON_DEVICE-}" ] || exit 0
numbers() { h5dump -y -w 1 -d "$1" -o numbers runs/quickstart/run.h5 > /dev/null; grep -oE '[0-9]+' numbers; }
for set in memory/placed_device_bytes memory/placed_host_bytes memory/checkpoint_copy_bytes \
  steps/peak_resident_bytes; do
  numbers /$set | sed "s|^|$set |"
done | awk '/^memory/ { room[n[$1]++] += $2 }
  /^steps/ { rank = peaks++ % 4; if ($2 > peak[rank]) peak[rank] = $2 }
  END {
    for (rank = 0; rank < 4; ++rank) {
      print "rank", rank, "planned", room[rank], "held", peak[rank]
      if (room[rank] <= 0 || peak[rank] <= 0 || peak[rank] > room[rank] + 1e8) bad = 1
    }
    exit bad || peaks < 4 }'
