#!/bin/sh
# Draws the pictures of pages: figures.sh BRUME PERF_FIGURES DIRECTORY. Relative paths are those of the project's folder.
set -eu
cd "$(dirname "$0")/.."
"$1" plan regression/decks/figure.toml --svg "$3/plan.svg" > /dev/null 2> "$3/said" || { cat "$3/said"; exit 1; }
rm "$3/said"
"$2" "$3"
chmod 644 "$3"/*.svg
