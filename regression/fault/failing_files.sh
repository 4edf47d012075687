#!/bin/sh
# failing_files.sh [POINTS]: the disk of the run directory fails, at so many calls of each of two ranks, once or from then
# on. What fails once costs a warning, and the job ends as if nothing had been; a disk that stays full ends it with exit
# code 6 and a line with the path and the reason. In any case the checkpoint before is whole, and the next job ends with
# the bits of one that nothing disturbed.
set -eu
points=${1:-6}
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
job() { # <directory> [word...]
  directory=$1
  shift
  code=0
  timeout 60 mpirun -n 2 --oversubscribe "$@" "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=2 \
    --set output.checkpoint_every=2 --set output.trace=false \
    --set output.directory="$directory" $flags > log 2>&1 || code=$?
}
fail() { cat log; echo "$1"; exit 1; }

flags='--steps 8' && job begun
[ "$code" -eq 0 ] || fail "an undisturbed job: exit code $code"
cp -r begun undisturbed
flags= && job undisturbed
[ "$code" -eq 0 ] && [ -n "$(state undisturbed 12)" ] || fail "an undisturbed job: exit code $code"

# Goes on after 8 steps, and writes checkpoints after 10 and 12.
disturbed() { # <rank> <call> <error> [1: stays]
  rm -rf run
  cp -r begun run
  job run -x LD_PRELOAD="$BRUME_FAILING_FILES" -x BRUME_FAILING_FOLDER="$(realpath run)" -x BRUME_FAILING_RANK="$1" \
    -x BRUME_FAILING_CALL="$2" -x BRUME_FAILING_ERROR="$3" ${4:+-x BRUME_FAILING_STAYS=1}
}

for rank in 0 1; do
  disturbed $rank 0 5
  count=$(sed -n 's/^calls of files: //p' log)
  [ "$code" -eq 0 ] && [ "$count" -gt 0 ] || fail "no calls were counted on rank $rank"
  ended=0 went_on=0
  for i in $(seq "$points"); do
    at=$i  # each where there are few, else spread over the job by the golden ratio
    [ "$count" -le "$points" ] || at=$(awk "BEGIN { x = $i * 0.6180339887; print int((x - int(x)) * $count) + 1 }")
    [ "$at" -le "$count" ] || break
    for stays in '' 1; do
      if [ "$stays" ]; then disturbed $rank "$at" 28 1; else disturbed $rank "$at" 5; fi
      where="call $at of rank $rank${stays:+, and all after it,} failed: "
      case $code in
        0) went_on=$((went_on + 1)) ;;
        6) ended=$((ended + 1))
           grep -qE 'brume: .*run.*: (No space left on device|Input/output error)' log || fail "${where}nobody said so" ;;
        *) fail "${where}exit code $code" ;;
      esac
      [ "$code" -eq 0 ] || job run
      [ "$code" -eq 0 ] && [ "$(state run 12)" = "$(state undisturbed 12)" ] || fail "${where}the next job's end is another one"
      [ -z "$(find run -name '*.tmp')" ] || fail "${where}something unfinished is left"
    done
  done
  echo "rank $rank, $count calls: $ended jobs ended with 6, $went_on went on"
done
