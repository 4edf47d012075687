#!/bin/sh
# The manual page is a page, and the examples ask for verbs and options that there are.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$BRUME" manual > brume.1
if command -v groff > /dev/null; then
  groff -man -ww -Tutf8 brume.1 > page 2> warned
  [ ! -s warned ] || { cat warned; exit 1; }
  grep -q 'a bug in Brume' page
fi
sed -n '/^.SH EXAMPLES/,$s/^.B //p' brume.1 | sed 's/\\-/-/g' > examples
[ "$(wc -l < examples)" -ge 15 ] || { echo "examples are missing"; exit 1; }
while read -r example; do
  set -- $(printf '%s\n' "$example" | sed 's/.*brume //')
  verb=$1
  case $verb in import|export) verb="$1 $2" ;; esac
  # shellcheck disable=SC2086
  "$BRUME" $verb --help > help || { echo "no such verb: $example"; exit 1; }
  grep -qF "$example" help || { echo "the verb's help lacks: $example"; exit 1; }
  for word; do
    case $word in -*) grep -q -- "$word[ ,]" help || { echo "no option $word: $example"; exit 1; } ;; esac
  done
done < examples
