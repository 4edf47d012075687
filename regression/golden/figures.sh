#!/bin/sh
# The pictures of pages are those that the program draws. `make figures` rewrites them.
set -eu
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
"$BRUME_REGRESSION_DIR/figures.sh" "$BRUME" "$PERF_FIGURES" "$found"
status=0
for picture in "$BRUME_REGRESSION_DIR"/../inputs/figures/*.svg; do
  cmp "$picture" "$found/$(basename "$picture")" || status=1
done
[ "$(ls "$found" | wc -l)" -eq 4 ] || { ls "$found"; status=1; }
for picture in "$found"/*.svg; do
  xmllint --noout "$picture" 2> /dev/null || ! command -v xmllint > /dev/null || { echo "$picture is no XML"; status=1; }
done
exit $status
