#!/bin/sh
# The references of keys are those that the program prints. `make golden-update` rewrites them.
set -eu
inputs=$BRUME_REGRESSION_DIR/../inputs
found=$(mktemp)
trap 'rm -f "$found"' EXIT
status=0
# same <page>: the page is `found`.
same() {
  if [ -n "${GOLDEN_UPDATE:-}" ]; then cat "$found" > "$1"; fi
  diff "$1" "$found" || status=1
}

sed '/^## Keys of a deck$/q' "$inputs/README.md" > "$found"
{ echo; "$BRUME" keys --markdown; } >> "$found"
same "$inputs/README.md"

# Other pages have them between two comments: <!-- keys: plan --> and <!-- end -->.
for page in plans.md profiles/README.md; do
  awk -v brume="$BRUME" '
    /^<!-- end -->$/ { inside = 0 }
    !inside
    /^<!-- keys: [a-z]* -->$/ { inside = 1; fflush(); system(brume " keys --markdown --of " $3) }' "$inputs/$page" > "$found"
  same "$inputs/$page"
done
[ "$(grep -c '^| `' "$inputs/profiles/README.md")" -gt 40 ] || { echo "keys of profiles are missing"; exit 1; }

# Each deck that lies there is named.
for deck in "$inputs"/*.toml; do
  grep -q "^| \`$(basename "$deck" .toml)\` |" "$inputs/README.md" || { echo "$deck is not named"; exit 1; }
done
"$BRUME" keys training.optimizer | grep -q '^training.optimizer.lr  *number .* 0.0003 ' || { echo "keys in columns"; exit 1; }
if "$BRUME" keys traning 2> "$found"; then exit 1; fi
grep -q "no key of a deck begins with 'traning'; did you mean 'training'?" "$found"
exit $status
