# To be sourced after tiny_job.sh: what programs print, by its shape, on terminals of 80, 100 and 200 columns and without one.
# The texts go into files that compare_printed holds against reviewed ones; `make golden-update` rewrites those.
golden=$BRUME_REGRESSION_DIR/golden
cp "$deck" tiny.toml
cp "$BRUME_REGRESSION_DIR/decks/profile.toml" .

# Numbers become #, units that depend on them too; sentences are joined again, because where they break depends on
# the length of numbers; what is only said on some machines, or where times were such, is left out; messages before and amid
# the steps, whose stream mpirun may pass on sooner or later, come last.
shape() {
  sed -e 's/^.*\x1b\[K//' -e 's/\x1b\[[0-9;]*m//g' -e 's/\r//g' -e '${/^$/d}' "$1" | grep -v '^Script ' |
    sed -e ':next' -e '$!N' -e 's/\n        \([^ ]\)/ \1/' -e 'tnext' -e 'P' -e 'D' | grep -v '^\(slower\|faster\): ' |
    sed -E -e "s/\($(hostname)\)/(HOST)/" -e 's/[0-9]+([.:][0-9]+)*(e[-+][0-9]+)?/#/g' -e 's/# (us|ms|s|min)\>/# s/g' \
      -e 's/# ([KMGT]i)?B\>/# B/g' -e 's/# [kMGT]\>/#/g' -e 's/[-+]#/#/g' -e 's/^ +//' -e 's/ {2,}/  /g' -e 's/by [a-z, ]*, seed/by TRANSPORT, seed/' |
    grep -v -E '^(run|other): ' |  # hints, which measured times give
    awk '/^brume: |^all weights are|^results of an earlier run/ { late = late $0 "\n"; next } { print } END { printf "%s", late }'
}
# ended <code> <name> <command...>: what it prints at each width, standard error in the order of a terminal, as it ends with
# that code. No line is wider than its terminal, or than 100 columns ($without_terminal: messages stay whole there, so that
# they can be searched for).
ended() {
  code=$1 name=$2
  shift 2
  for columns in none 80 100 200; do
    rm -rf begun-now && { [ ! -d begun ] || cp -r begun begun-now; }
    got=0
    case $columns in
      none) "$@" > raw 2>&1 < /dev/null || got=$? ;;
      *)
        script -qec "stty cols $columns rows 50 && $*" /dev/null > raw < /dev/null || got=$?
        sed -i -e 's/\r$//' raw
        ;;
    esac
    [ "$got" -eq "$code" ] || { cat raw; echo "$name at $columns columns ended with $got instead of $code"; exit 1; }
    most=$columns
    [ "$columns" != none ] || most=${without_terminal:-100}
    sed -e 's/^.*\x1b\[K//' -e 's/\x1b\[[0-9;]*m//g' -e 's/^.*\r//' raw |
      awk -v most="$most" -v name="$name" 'length > most { print name, "at", most, "columns:", $0; bad = 1 } END { exit bad }'
    # Colour is for terminals, and there for errors and warnings.
    if [ "$columns" = none ] && grep -q "$(printf '\033')" raw; then echo "$name: has colours"; cat raw; exit 1; fi
    { echo "== $name"; shape raw; } >> "printed-$columns"
  done
}
# compare_printed <name of the reviewed files>
compare_printed() {
  status=0
  for columns in none 80 100 200; do
    if [ -n "${GOLDEN_UPDATE:-}" ]; then cp "printed-$columns" "$golden/$1-$columns.expected"; fi
    diff "$golden/$1-$columns.expected" "printed-$columns" || status=1
  done
  return $status
}
