#!/bin/sh
# Pages and the comments of public headers and of the tuner follow the rules of writing in src/contributing.md: the forms that a script can
# see. Links and names of files in pages lead somewhere; commands in pages have verbs and options that the program knows.
#   prose.sh SOURCES BRUME [PAGE...]       default: all pages
set -eu
cd "$1"
brume=$2
shift 2
rules=$PWD/regression
export LC_ALL=C
status=0
complain() { echo "$*"; status=1; }

all=$#
pages=${*:-$(find . -name '*.md' -not -path './build*' -not -path './.git/*' | sed 's|^\./||' | sort)}
awk -f "$rules/prose.awk" $pages || status=1

# Links and file names.
for page in $pages; do
  folder=$(dirname "$page")
  for link in $(grep -oE '\]\([^)]+\)' "$page" | sed 's/^](//; s/)$//'); do
    file=${link%%#*} anchor=
    case $link in
      http*) continue ;;
      *'#'*) anchor=${link#*#} ;;
    esac
    target=$folder/$file
    [ -n "$file" ] || target=$page
    [ -e "$target" ] || { complain "$page: link: $link leads nowhere"; continue; }
    if [ -d "$target" ]; then target=$target/README.md; fi
    [ -z "$anchor" ] ||
      grep -E '^#+ ' "$target" | sed -E 's/^#+ //' | tr 'A-Z ' 'a-z-' | sed 's/[^a-z0-9_-]//g' | grep -qx "$anchor" ||
      complain "$page: link: $target has no heading #$anchor"
  done
  for file in $(grep -oE '`(src|inc|inputs|jobs|perf|regression)/[A-Za-z0-9_./-]*`' "$page" | tr -d '`'); do
    [ -e "$file" ] || complain "$page: file: there is no $file"
  done
  for target in $(grep -oE '(^    |`)make [a-z-]+' "$page" | sed 's/.*make //'); do
    grep -qE "^$target( |:)|^\.PHONY:.* $target( |$)" Makefile || complain "$page: command: make has no $target"
  done
done

# Commands.
help() { "$brume" "$@" --help; }
awk -v commands=1 -f "$rules/prose.awk" $pages | sort -k 2 | while read -r place verb rest; do
  below=
  case $verb in import | export) below=${rest%% *} rest=${rest#"$below"} ;; esac
  if [ "$verb $below" != "${known-}" ]; then
    known="$verb $below"
    options=$(help $verb $below 2> /dev/null | grep -oE -- '--[a-z-]+' | sort -u) || options=
  fi
  [ -n "$options" ] || echo "$place: command: brume has no $verb $below"
  for option in $rest; do
    echo "$options" | grep -qx -- "$option" || echo "$place: command: brume $verb $below has no $option"
  done
done > "${TMPDIR:-/tmp}/prose.$$"
cat "${TMPDIR:-/tmp}/prose.$$"
[ ! -s "${TMPDIR:-/tmp}/prose.$$" ] || status=1
rm -f "${TMPDIR:-/tmp}/prose.$$"

[ "$all" -gt 0 ] && exit $status

find inc src/tuner -name '*.[ch]pp' | sort | xargs awk -f "$rules/docstrings.awk" || status=1
[ "$(wc -l < README.md)" -le 150 ] || complain "README.md: more than 150 lines"
[ "$(wc -w < README.md)" -le 1300 ] || complain "README.md: more than 1,300 words"
exit $status
