#!/bin/sh
# The reference of a deck's keys is what the program knows of them. `make golden-update` rewrites it.
set -eu
reference=$BRUME_REGRESSION_DIR/../inputs/README.md
found=$(mktemp)
trap 'rm -f "$found"' EXIT
sed '/^## Keys of a deck$/q' "$reference" > "$found"
{ echo; "$BRUME" keys --markdown; } >> "$found"
if [ -n "${GOLDEN_UPDATE:-}" ]; then cat "$found" > "$reference"; fi
diff "$reference" "$found"
# Each deck that lies there is named.
for deck in "$BRUME_REGRESSION_DIR"/../inputs/*.toml; do
  grep -q "^| \`$(basename "$deck" .toml)\` |" "$reference" || { echo "$deck is not named in $reference"; exit 1; }
done
"$BRUME" keys training.optimizer | grep -q '^training.optimizer.lr  *number .* 0.0003 ' || { echo "keys in columns"; exit 1; }
if "$BRUME" keys no.such 2> "$found"; then exit 1; fi
grep -q "no key of a deck begins with 'no.such'" "$found"
