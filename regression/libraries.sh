#!/bin/sh
# libraries.sh <build folder> <whether programs are hardened: ON or OFF>
# No program of the build or of an installation looks for libraries in the current folder: RUNPATH has
# absolute folders only, and a library that lies beside the deck is not loaded. Hardened programs write nothing
# to the tables of functions of libraries, and notice when a stack was overwritten.
set -eu
build=$1
hardened=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Named, the component leaves the manifest of the user's own installation alone.
cmake --install "$build" --component Unspecified --prefix "$work/installed" > /dev/null

programs=0
for file in $(find "$build" "$work/installed" -type f \( -perm -u+x -o -name '*.so*' \) ! -path '*/CMakeFiles/*'); do
  readelf -dW "$file" > "$work/dynamic" 2> /dev/null && grep -q NEEDED "$work/dynamic" || continue  # no program
  programs=$((programs + 1))
  if [ "$hardened" = ON ]; then
    readelf -lW "$file" | grep -q GNU_RELRO && grep -q 'BIND_NOW\|FLAGS.*NOW' "$work/dynamic" ||
      { echo "$file is linked without -z relro -z now"; exit 1; }
    readelf -sW "$file" | grep -q __stack_chk_fail || { echo "$file has no guarded stack"; exit 1; }
  fi
  paths=$(sed -n 's/.*R\(UN\)\?PATH).*\[\(.*\)\]$/\2/p' "$work/dynamic")
  [ -n "$paths" ] || continue
  # $ORIGIN is the folder of the program, wherever it is started.
  ! echo "$paths" | tr ':' '\n' | grep -vq '^/\|^\$ORIGIN' ||
    { echo "$file: RUNPATH '$paths' has an entry that is not absolute"; exit 1; }
done
[ "$programs" -ge 2 ] || { echo "only $programs programs were found in $build"; exit 1; }

mkdir "$work/here"
cd "$work/here"
echo 'void mark(void) __attribute__((constructor)); int creat(const char*, unsigned); void mark(void) { creat("mark", 0600); }' > ../planted.c
cc -shared -fPIC -o ../planted.so ../planted.c
planted=0
for program in "$build/brume" "$work/installed/bin/brume"; do
  for name in $(readelf -dW "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p'); do
    case $name in libc.* | libm.* | libgcc_s.* | libstdc++.* | ld-linux*) continue ;; esac
    cp ../planted.so "$name"
    planted=$((planted + 1))
    "$program" check "$BRUME_REGRESSION_DIR/decks/tiny.toml" > ../out 2>&1 && [ ! -e mark ] ||
      { echo "$program loads $name from the current folder"; cat ../out; exit 1; }
    rm "$name"
  done
done
[ "$planted" -gt 10 ] || { echo "only $planted libraries were planted"; exit 1; }
