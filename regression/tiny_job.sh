# To be sourced: goes to a fresh folder with tokens in it; `tiny_job` runs the tiny deck there on four ranks, and
# `a_step` matches the lines that a training writes about its steps (the plan's tables have no learning rate).
a_step='e-[0-9][0-9] .* MiB$'
deck=$BRUME_REGRESSION_DIR/decks/tiny.toml
profile=cluster.profile=$BRUME_REGRESSION_DIR/decks/profile.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$BRUME" import tokens "$BRUME_REGRESSION_DIR" -o .
tiny_job() { mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile" "$@"; }
# Hashes of all that a training has after so many steps. <directory> <step>
state() { grep -o '"xxh3_128":"[0-9a-f]*"' "$1/checkpoints/step-$2/manifest.json"; }
# Whether the lines of JSON in two files have the same log-likelihoods, to 1e-5, and the same is_greedy.
same_likelihoods() {
  for file in "$1" "$2"; do
    sed 's/.*"log_likelihood": *\([^,}]*\).*/\1/' "$file" > "$file.numbers"
    grep -o '"is_greedy": *[a-z]*' "$file" | tr -d ' ' > "$file.greedy"
  done
  cmp "$1.greedy" "$2.greedy" && paste "$1.numbers" "$2.numbers" | awk '
    { d = ($1 - $2) / $2; if (NF != 2 || d > 1e-5 || d < -1e-5) bad = 1; if ($2 < -1) n++ }
    END { exit bad || n != NR || n < 3 }' || { cat "$1" "$2"; return 1; }
}
on_host() { [ -z "${BRUME_ON_DEVICE-}" ]; }
# refused_soon <code> <sentence> <command...>: one line of brume's has the sentence, and comes within two seconds, or where
# cores are shared in one of three attempts; the command ends with that code.
refused_soon() {
  expected=$1 sentence=$2
  shift 2
  for attempt in 1 2 3; do
    code=0
    begin=$(date +%s%N)
    timeout 60 "$@" > log 2>&1 &
    process=$!
    until grep -qF -- "$sentence" log || ! kill -0 "$process" 2> /dev/null; do sleep 0.02; done
    took=$((($(date +%s%N) - begin) / 1000000))
    wait "$process" || code=$?
    [ "$code" -eq "$expected" ] && [ "$(grep -c 'brume:' log)" -eq 1 ] && grep -qF -- "$sentence" log ||
      { cat log; echo "exit code $code, expected $expected and one line with '$sentence'"; exit 1; }
    echo "after $took ms: $sentence"
    [ "$took" -gt 2000 ] || return 0
  done
  exit 1
}
