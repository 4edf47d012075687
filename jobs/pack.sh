#!/usr/bin/env bash
# Packs a build with all that a bare x86-64 Linux lacks but glibc, and CUDA's libraries where it is for devices: the program,
# its libraries, Open MPI, decks, job templates. Unpacked anywhere, it runs there.
#
#   jobs/pack.sh BUILD NAME.tar.gz|NAME.tar.xz [FOLDER]     # what `make dist-binary` calls; needs patchelf
#
# FOLDER: its content goes along. BUILD is configured with -DBRUME_NATIVE=OFF, to run on other processors.
set -euo pipefail
usage="usage: jobs/pack.sh BUILD NAME.tar.gz|NAME.tar.xz [FOLDER]"
build=${1:?$usage} out=${2:?$usage} more=${3-}
case $out in
  *.tar.gz) name=$(basename "$out" .tar.gz) compress="gzip -n" ;;
  # A dictionary that spans executables, which share most of what they are made of.
  *.tar.xz) name=$(basename "$out" .tar.xz) compress="xz -T 1 --lzma2=preset=0,dict=128MiB" ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/$name
cmake --install "$build" --strip --component Unspecified --prefix "$root" > /dev/null
[ -z "$more" ] || cp -r "$more/." "$root"

# Open MPI keeps its own layout below one folder: the program and mpirun tell it where that is.
path_of() { ompi_info --parsable --path "$1" | sed -n "s/^path:$1://p" | head -n 1; }
mpi=$root/libexec/openmpi
prefix=$(path_of prefix) plugins=$(path_of pkglibdir) data=$(path_of pkgdatadir)
mkdir -p "$root/lib" "$mpi/bin" "$mpi/${plugins#"$prefix"/}" "$mpi/${data#"$prefix"/}"
cp -L "$plugins"/*.so "$mpi/${plugins#"$prefix"/}"
cp -r "$data"/. "$mpi/${data#"$prefix"/}"
cp -L "$prefix/bin/orterun" "$mpi/bin/mpirun"
cp -L "$prefix/bin/orted" "$mpi/bin/orted"
for pmix in "$prefix"/lib/*/pmix2 "$prefix"; do
  [ -d "$pmix/lib/pmix" ] || continue
  mkdir -p "$mpi/pmix/lib" "$mpi/pmix/share"
  cp -rL "$pmix/lib/pmix" "$mpi/pmix/lib"
  [ ! -d "$pmix/share" ] || cp -rL "$pmix/share" "$mpi/pmix"
  break
done
cat > "$root/bin/mpirun" << 'END'
#!/bin/sh
# Open MPI's mpirun as packed here.
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
export OPAL_PREFIX="$root/libexec/openmpi" PMIX_INSTALL_PREFIX="$root/libexec/openmpi/pmix"
# Without ssh there is this machine alone.
command -v ssh > /dev/null || command -v rsh > /dev/null || export OMPI_MCA_plm="${OMPI_MCA_plm:-isolated}"
exec "$OPAL_PREFIX/bin/mpirun" "$@"
END
chmod +x "$root/bin/mpirun"

# All libraries that these need, but those of glibc, which come with the kernel's loader, and of CUDA, which are found where
# the driver is. Plugins of hardware that this machine has no libraries of need none.
libc='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libmvec|libnsl|libnss_[a-z]*)[.-]'
cuda='^lib(cuda|cudart|cublas|cublasLt|cudnn[a-z_]*|nccl|nvrtc[a-z-]*|nvJitLink|nvidia[a-z-]*)\.'
elves() { find "$root" -type f | while read -r file; do ! head -c 4 "$file" | grep -q ELF || echo "$file"; done; }
elves > "$work/elves"
while read -r file; do ldd "$file" 2> /dev/null || true; done < "$work/elves" | awk '$2 == "=>" && $3 ~ "^/" { print $1, $3 }' |
  sort -u > "$work/libraries"
while read -r library path; do
  grep -qE "$libc|$cuda" <<< "$library" || cp -L "$path" "$root/lib/$library"
done < "$work/libraries"
elves > "$work/elves"
while read -r file; do
  patchelf --set-rpath "\$ORIGIN/$(realpath --relative-to="$(dirname "$file")" "$root/lib")" "$file"
done < "$work/elves"

needs=$(xargs -n 1 readelf -d < "$work/elves" 2> /dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | grep -E "$cuda" |
  tr '\n' ' ' || true)
glibc=$(xargs -n 1 objdump -T < "$work/elves" 2> /dev/null | grep -oE 'GLIBC_2\.[0-9.]+' | sort -uV | tail -n 1)
cat > "$root/manifest" << END
program $("$root/bin/brume" --version 2> /dev/null || echo "brume, for devices")
commit  $(git rev-parse --short HEAD 2> /dev/null || echo "none")$(git diff --quiet HEAD 2> /dev/null || echo ', with changes')
built   $(date -u '+%F %H:%M UTC')${BUILT_FOR:+: $BUILT_FOR}
needs   $glibc or newer${needs:+, and of CUDA: $needs}
END
tar -C "$work" --sort=name --owner=0 --group=0 -c "$name" | $compress > "$out"
cat "$root/manifest"
echo "$out: $(du -h "$out" | cut -f 1), unpacked $(du -sh "$root" | cut -f 1)"
