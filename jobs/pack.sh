#!/bin/sh
# Packs an installation that needs nothing but glibc on x86-64 Linux: the program, its libraries, Open MPI, decks, job
# templates. Unpack it anywhere.
#   jobs/pack.sh BUILD FILE.tar.gz      # what `make dist-binary` calls; needs patchelf
set -eu
build=${1:?usage: jobs/pack.sh BUILD FILE.tar.gz}
out=${2:?usage: jobs/pack.sh BUILD FILE.tar.gz}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/$(basename "$out" .tar.gz)
cmake --install "$build" --component Unspecified --prefix "$root" > /dev/null

# Open MPI keeps its own layout below one folder: the program and mpirun tell it where that is.
mpi=$root/libexec/openmpi
prefix=$(ompi_info --parsable --path prefix | sed 's/.*prefix://')
plugins=$(ompi_info --parsable --path pkglibdir | sed 's/.*pkglibdir://')
data=$(ompi_info --parsable --path pkgdatadir | sed 's/.*pkgdatadir://')
here="$mpi/${plugins#"$prefix"/}"
mkdir -p "$root/lib" "$here" "$mpi/bin" "$mpi/${data#"$prefix"/}"
cp -L "$plugins"/*.so "$here"
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

# All libraries that these need, but those of glibc, which come with the kernel's loader. Plugins of hardware that this
# machine has no libraries of need none.
elves() { find "$root" -type f | while read -r file; do head -c 4 "$file" | grep -q ELF && echo "$file"; done; }
elves > "$work/elves"
while read -r file; do ldd "$file" 2> /dev/null; done < "$work/elves" | sed -n 's/.* => \(\/.*\) (0x.*/\1/p' | sort -u |
  while read -r library; do
    case $(basename "$library") in
      ld-linux* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so* | libutil.so* | libanl.so* | \
        libmvec.so* | libnsl.so* | libnss_*) ;;
      *) cp -L "$library" "$root/lib" ;;
    esac
  done
elves | while read -r file; do
  folder=$(dirname "$file")
  patchelf --set-rpath "\$ORIGIN/$(realpath --relative-to="$folder" "$root/lib")" "$file"
done
tar -C "$work" -czf "$out" "$(basename "$root")"
echo "$out: $(du -h "$out" | cut -f 1)"
