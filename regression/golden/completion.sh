#!/bin/sh
# Bash completes verbs, what stands below them, and options.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$BRUME" completion > completion.bash
cat > ask.bash <<'ASK'
source ./completion.bash
completes() { # <expected> <word...>: the last word is the one to complete
  local expected=$1
  shift
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  _brume
  [ "${COMPREPLY[*]}" = "$expected" ] || { echo "$*: '${COMPREPLY[*]}', expected '$expected'"; exit 1; }
}
completes 'plan' brume pl
completes '--max-minutes' brume run --max
completes 'tokens' brume import to
completes '--tokenizer' brume import tokens a.txt --tokeni
completes '--sweep' brume plan my.toml --sw
completes '' brume run my
ASK
bash ask.bash
