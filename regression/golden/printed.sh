#!/bin/sh
# Everything that a run prints, by its shape, against reviewed texts: on terminals of 80, 100 and 200 columns and without
# one. No line is wider than its terminal, or than 100 columns. `make golden-update` rewrites the texts.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
golden=$BRUME_REGRESSION_DIR/golden
cp "$deck" tiny.toml
cp "$BRUME_REGRESSION_DIR/decks/profile.toml" .

# Numbers become #, units that depend on them too; sentences are joined again, because where they break depends on
# the length of numbers; what is only said on some machines, or where times were such, is left out.
shape() {
  sed -e 's/^.*\x1b\[K//' -e 's/\x1b\[[0-9;]*m//g' -e 's/\r//g' "$1" | grep -v -e '^slower: ' -e '^Script ' |
    sed -e ':next' -e '$!N' -e 's/\n        \([^ ]\)/ \1/' -e 'tnext' -e 'P' -e 'D' |
    sed -E -e "s/\($(hostname)\)/(HOST)/" -e 's/[0-9]+([.:][0-9]+)*(e[-+][0-9]+)?/#/g' -e 's/# (us|ms|s|min)\>/# s/g' \
      -e 's/# ([KMGT]i)?B\>/# B/g' -e 's/# [kMGT]\>/#/g' -e 's/[-+]#/#/g' -e 's/^ +//' -e 's/ {2,}/  /g' -e 's/by [a-z, ]*, seed/by TRANSPORT, seed/' |
    grep -v '^run: '  # hints, which measured times give
}
# said <name> <command...>: what it prints at each width, standard error in the order of a terminal.
said() {
  name=$1
  shift
  for columns in none 80 100 200; do
    rm -rf begun-now && { [ ! -d begun ] || cp -r begun begun-now; }
    case $columns in
      none) "$@" > raw 2>&1 < /dev/null || { cat raw; exit 1; } ;;
      *)
        script -qec "stty cols $columns rows 50 && $*" /dev/null > raw < /dev/null || { cat raw; exit 1; }
        sed -i -e 's/\r$//' raw
        ;;
    esac
    most=$columns
    [ "$columns" != none ] || most=100
    sed -e 's/^.*\x1b\[K//' -e 's/\x1b\[[0-9;]*m//g' -e 's/^.*\r//' raw |
      awk -v most="$most" -v name="$name" 'length > most { print name, "at", most, "columns:", $0; bad = 1 } END { exit bad }'
    { echo "== $name"; shape raw; } >> "printed-$columns"
  done
}
job="mpirun -n 4 --oversubscribe $BRUME run tiny.toml --set cluster.profile=profile.toml"
begin() { $job --set output.directory=begun --steps 5 > log 2>&1 || { cat log; exit 1; }; }

said run $job --resume none
begin
said resumed $job --set output.directory=begun-now --set training.optimizer.lr=1e-3
said finished $job
said report "$BRUME" report run --text
said eval "$BRUME" eval run --sequences 8
said plan "$BRUME" plan tiny.toml --set cluster.profile=profile.toml --top 4 -o plan.toml
said analyze "$BRUME" analyze tiny.toml --set cluster.profile=profile.toml --plan plan.toml
said simulate "$BRUME" simulate tiny.toml --set cluster.profile=profile.toml --plan plan.toml
said sweep "$BRUME" plan tiny.toml --set cluster.profile=profile.toml --sweep cluster.devices_per_node=1,2,4

status=0
for columns in none 80 100 200; do
  if [ -n "${GOLDEN_UPDATE:-}" ]; then cp "printed-$columns" "$golden/printed-$columns.expected"; fi
  diff "$golden/printed-$columns.expected" "printed-$columns" || status=1
done
exit $status
