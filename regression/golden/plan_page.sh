#!/bin/sh
# The page of a plan has a picture of each kind for each stage; a browser, where there is one, finds nothing wrong with it.
set -eu
job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT
cd "$job"
"$BRUME" plan "$BRUME_REGRESSION_DIR/../inputs/quickstart.toml" --set "cluster.profile=$BRUME_REGRESSION_DIR/decks/quickstart_profile.toml" \
  --set search.stages='[2]' --html page.html -o plan.toml 2> said || { cat said; exit 1; }
count() { grep -o "$1" "$2" | wc -l; }
[ "$(count 'class="bar"' page.html)" -eq 4 ] && [ "$(count 'class="lanes"' page.html)" -eq 2 ] || { echo "pictures are missing"; exit 1; }
code=0
"$BRUME" plan "$BRUME_REGRESSION_DIR/../inputs/quickstart.toml" --html no/such/page.html 2> said || code=$?
[ $code = 6 ] && grep -q 'no/such/page.html' said || { cat said; exit 1; }
. "$BRUME_REGRESSION_DIR/browser.sh"
if has_browser; then
  in_browser page.html
  pictures 'class="lanes"' 2
  pictures 'class="bar"' 4
  [ "$(count '<circle' dom)" -ge 2 ] || { echo "a browser lacks other plans"; exit 1; }
fi
