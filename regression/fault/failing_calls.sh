# To be sourced: fail_each POINTS KIND... lets one call of a kind fail on each of a job's two ranks: each call where there
# are at most POINTS, else the first one of each place in the program, or of POINTS of the places; where places are not
# known, POINTS of the calls. The job, which is `job CALL RANK`, then ends with exit code 4 and one line that says why and
# what to do, as $says matches it; where $spares is set a library may spare it. Before MPI has started, MPI's own words do.
fail_each() {
  points=$1
  shift
  for rank in 0 1; do
    job count $rank
    [ "$code" -eq 0 ] || { cat log; echo "exit code $code, and nothing failed"; exit 1; }
    mv log counted
    for kind; do
      count=$(sed -n "s/^calls of $kind: //p" counted)
      places=$(grep -c "^place of $kind:" counted || true)
      [ "${count:-0}" -gt 0 ] || { cat counted; echo "rank $rank made no call of $kind"; exit 1; }
      if [ "$count" -le "$points" ] || [ "$places" -eq 0 ]; then
        calls=$(seq -f "$kind:%.0f" "$count")
      else
        calls=$(sed -n "s/^place of $kind: /$kind@/p" counted)
      fi
      part="$points / $(echo "$calls" | wc -l)"
      calls=$(echo "$calls" | awk "$part >= 1 || int(NR * $part + 0.5) > int((NR - 1) * $part + 0.5)")
      failed=0
      spared=0
      for call in $calls; do
        job "$call" $rank
        if ! grep -q "here a call of $kind fails" log; then
          [ "$code" -eq 0 ] || { cat log; echo "$call on rank $rank: exit code $code, and nothing failed"; exit 1; }
          continue
        fi
        failed=$((failed + 1))
        grep -q 'occurred in MPI_Init' log && continue
        lines=$(grep -c 'brume:' log || true)
        # MPI goes on without some of its threads; where a stream of the standard library swallows it a text of the help is
        # shorter, or toml++ finds no number.
        if [ -n "$spares" ] && { [ "$code:$lines" = 0:0 ] || grep -q 'could not be interpreted as a value' log; }; then
          spared=$((spared + 1))
          continue
        fi
        [ "$code" -eq 4 ] && [ "$lines" -eq 1 ] && grep -qE "brume: .*($says)" log ||
          { cat log; echo "$call on rank $rank: exit code $code and $lines lines, expected 4 and 1 with '$says'"; exit 1; }
      done
      [ "$failed" -gt "$spared" ] || { echo "no call of $kind failed on rank $rank"; exit 1; }
      echo "$kind on rank $rank: $count calls at $places places, $failed failed, each with exit code 4 but $spared"
    done
  done
}
