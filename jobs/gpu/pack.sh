#!/usr/bin/env bash
# Packs a finished build with the libraries and the Open MPI that it runs on, so that it starts anywhere. From the project's root:
#
#   jobs/gpu/pack.sh BUILD NAME [TEST...]      # makes build-gpu/NAME and build-gpu/NAME.tar.xz
#
# BUILD: its folder, for hosts too, configured with -DBRUME_NATIVE=OFF -DCMAKE_SKIP_RPATH=ON. build-bundle.sh calls this for devices.
set -euo pipefail
built=${1:?usage: jobs/gpu/pack.sh BUILD NAME [TEST...]}
bundle=$(pwd -P)/build-gpu/${2:?usage: jobs/gpu/pack.sh BUILD NAME [TEST...]}
shift 2
tests=$*
here=$(cd "$(dirname "$0")" && pwd -P)
rm -rf "$bundle" "$bundle.tar.xz"
mkdir -p "$bundle"/{bin,tests,lib/openmpi3,lib/newer,share/brume,etc}
strip -o "$bundle/bin/brume" "$built/brume"
for test in $tests; do
  strip -o "$bundle/tests/$test" "$built/$([[ $test == perf_* ]] && echo perf || echo regression)/$test"
done
cp -r inputs jobs "$bundle/"
cp -r inputs/profiles "$bundle/share/brume/"
cp "$here"/{environment.sh,steps.sh,README.md} "$bundle/"
cp -r README.md src inc "$bundle/share/brume/"  # text for the quick start to learn from

# Open MPI: its launcher, and the plugins that need no network's libraries.
path_of() { ompi_info --parsable --path "$1" | sed -n "s/^path:$1://p" | head -n 1; }
cp "$(readlink -f "$(command -v mpirun)")" "$bundle/bin/mpirun"
cp "$(command -v orted)" "$(command -v h5dump)" "$bundle/bin/"
for plugin in "$(path_of pkglibdir)"/mca_*.so; do
  ldd "$plugin" 2> /dev/null | grep -qE 'libuc[pst]|libfabric|libpsm|libibverbs|librdmacm|libflux|libnl-|libslurm' ||
    cp -L "$plugin" "$bundle/lib/openmpi3/"
done
cp -rL "$(path_of pkgdatadir)" "$bundle/share/openmpi"
cp -rL "$(path_of sysconfdir)" "$bundle/etc/openmpi"

# All libraries that these need but the C library's own, CUDA's, which are found there, and the compiler's, which are taken
# where those there are missing or older.
libc='^(linux-vdso|ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl|libnss_[a-z]*)[.-]'
cuda='^lib(cuda|cudart|cublas|cublasLt|cudnn[a-z_]*|nccl|nvrtc[a-z-]*|nvJitLink|nvidia[a-z-]*)\.'
elf_files() { find "$bundle" -type f | while read -r file; do ! head -c 4 "$file" | grep -q ELF || echo "$file"; done; }
elf_files | xargs ldd 2> /dev/null | awk '$2 == "=>" && $3 ~ "^/" { print $1, $3 }' | sort -u > "$bundle.needed"
while read -r library path; do
  case $library in
    libstdc++.so.* | libgcc_s.so.* | libgomp.so.*) cp -L "$path" "$bundle/lib/newer/$library" ;;
    *) grep -qE "$libc|$cuda" <<< "$library" || cp -L "$path" "$bundle/lib/$library" ;;
  esac
done < "$bundle.needed"
# PMIx has plugins and texts of its own.
if pmix=$(awk '$1 ~ /^libpmix/ { print $2; exit }' "$bundle.needed") && [ -n "$pmix" ]; then
  installed=$(dirname "$(readlink -f "$pmix")")
  mkdir -p "$bundle/lib/pmix"
  cp -L "$installed"/pmix/*.so "$bundle/lib/pmix/"
  for share in "$installed/../share/pmix" /usr/share/pmix; do [ ! -d "$share" ] || { cp -rL "$share" "$bundle/share/pmix" && break; }; done
fi
needs=$(elf_files | xargs -n 1 readelf -d 2> /dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | grep -E "$cuda" | tr '\n' ' ' || true)
glibc=$(elf_files | xargs -n 1 objdump -T 2> /dev/null | grep -oE 'GLIBC_2\.[0-9.]+' | sort -uV | tail -n 1)
cat > "$bundle/manifest" << END
commit  $(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo ', with changes')
built   $(date -u '+%F %H:%M UTC'): ${BUILT_FOR:-$built}
needs   $glibc or newer, and of CUDA: $needs
END
# A dictionary that spans executables, which share most of what they are made of.
tar -C "$(dirname "$bundle")" --sort=name --owner=0 --group=0 -c "$(basename "$bundle")" | xz -T 1 --lzma2=preset=0,dict=128MiB > "$bundle.tar.xz"
cat "$bundle/manifest"
rm -f "$bundle.needed"
echo "$bundle.tar.xz: $(du -h "$bundle.tar.xz" | cut -f 1), unpacked $(du -sh "$bundle" | cut -f 1), packed in $SECONDS s"
