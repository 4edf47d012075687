#!/bin/sh
# bare.sh <build folder>: what `make dist-binary` packs plans and trains on a machine that has glibc and nothing else.
set -eu
[ "$(id -u)" -eq 0 ] && command -v patchelf > /dev/null && command -v ompi_info > /dev/null && unshare -m true 2> /dev/null ||
  { echo "skipped: needs root, patchelf and Open MPI"; exit 77; }
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$BRUME" import tokens "$BRUME_REGRESSION_DIR" -o tokens 2> log || { cat log; exit 1; }
"$BRUME_REGRESSION_DIR/../jobs/pack.sh" "$build" "$work/brume.tar.gz"

mkdir -p bare/opt bare/tmp bare/dev bare/proc bare/etc bare/work
tar -C bare/opt -xzf brume.tar.gz
[ -z "$(find bare/opt -name 'libc.so*' -o -name 'ld-linux*')" ] || { echo "glibc was packed"; exit 1; }
# glibc, from what its package says that it is.
loader=$(readelf -lW "$BRUME" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
folder=$(dirname "$(ldd "$BRUME" | sed -n 's/.*libc\.so\.6 => \(.*\) (0x.*/\1/p')")
mkdir -p "bare$folder" "bare$(dirname "$loader")"
for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libresolv.so.2 libutil.so.1 libmvec.so.1 libanl.so.1; do
  cp -L "$folder/$name" "bare$folder"
done
cp -L "$loader" "bare$loader"
echo 'root:x:0:0::/:/none' > bare/etc/passwd
cp tokens/*.tok bare/work
sed "s/^host_memory_gib.*/&\nprofile = \"profile.toml\"/; s/^devices_per_node *= 4/devices_per_node = 2/" \
  "$BRUME_REGRESSION_DIR/decks/tiny.toml" > bare/work/tiny.toml
cp "$BRUME_REGRESSION_DIR/decks/profile.toml" bare/work
cp bare/opt/brume/share/brume/inputs/llama-8b.toml bare/work

# What is mounted goes with the process.
cat > inside << 'END'
set -eu
mount -t proc proc bare/proc
mount --rbind /dev bare/dev
in_bare() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ TMPDIR=/tmp OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$@"; }
in_bare chroot bare /opt/brume/bin/brume --version
cd bare/work
in_bare chroot .. /opt/brume/bin/brume plan /work/llama-8b.toml --top 1 -o /work/plan.toml
# bin/mpirun is a script, and here is no shell to read it.
in_bare OPAL_PREFIX=/opt/brume/libexec/openmpi PMIX_INSTALL_PREFIX=/opt/brume/libexec/openmpi/pmix OMPI_MCA_plm=isolated \
  chroot .. /opt/brume/libexec/openmpi/bin/mpirun --wdir /work --oversubscribe -n 2 /opt/brume/bin/brume run tiny.toml
in_bare chroot .. /opt/brume/bin/brume report /work/run
END
unshare -m --propagation private sh -eu inside > log 2>&1 || { cat log; exit 1; }
cat log
grep -q '^step time: predicted' log && [ -f bare/work/run/report.html ] && [ -f bare/work/plan.toml ]
# The same numbers as here.
sed "s|profile.toml|$BRUME_REGRESSION_DIR/decks/profile.toml|" bare/work/tiny.toml > tiny.toml
mv tokens/*.tok . && mpirun -n 2 --oversubscribe "$BRUME" run tiny.toml > log 2>&1 || { cat log; exit 1; }
losses() { sed -n 's/^{"step":\([0-9]*\),.*\("loss":[^,]*\).*/\1 \2/p' "$1/metrics.jsonl"; }
[ "$(losses run | wc -l)" -eq 12 ] && [ "$(losses run)" = "$(losses bare/work/run)" ]
