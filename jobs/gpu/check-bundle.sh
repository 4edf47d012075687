#!/usr/bin/env bash
# Starts a bundle's programs where nothing of this machine is but the C library: in an empty root, as root.
#   jobs/gpu/check-bundle.sh build-gpu/brume-sm_90.tar.xz [CUDA_FOLDER]
# CUDA_FOLDER has CUDA's libraries, as a cluster's machines do. Without a driver programs for devices must end for want of
# libcuda.so.1 alone; with the toolkit's stub in its place they must go on until they ask for a device. Those for hosts run.
set -euo pipefail
archive=${1:?usage: jobs/gpu/check-bundle.sh ARCHIVE [CUDA_FOLDER]}
cuda=${2:-/usr/local/cuda/lib64}
root=$(mktemp -d)
if [ "${BRUME_INSIDE:-}" != yes ]; then  # mounts of its own, which go with it
  rmdir "$root"
  BRUME_INSIDE=yes exec unshare --mount --net -- "$0" "$@"
fi
trap 'umount -l "$root"/{proc,dev,sys,cuda} 2> /dev/null; rm -rf "$root"' EXIT
ip link set lo up 2> /dev/null || true
mkdir -p "$root"/{proc,dev,sys,tmp,cuda,stub,lib64,lib/x86_64-linux-gnu,etc,root}
for library in ld-linux-x86-64.so.2 libmvec.so.1 libanl.so.1 libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libresolv.so.2 libutil.so.1 libnss_files.so.2; do
  [ ! -e "/lib/x86_64-linux-gnu/$library" ] || cp -L "/lib/x86_64-linux-gnu/$library" "$root/lib/x86_64-linux-gnu/"
done
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
echo 'root:x:0:0::/root:' > "$root/etc/passwd"
tar -C "$root" -xJf "$archive"
name=$(basename "$archive" .tar.xz)
for folder in proc dev sys; do mount --rbind "/$folder" "$root/$folder"; done
mount --bind "$cuda" "$root/cuda"
cp "$cuda/stubs/libcuda.so" "$root/stub/libcuda.so.1"
echo "in an empty root with: $(cd "$root" && find lib lib64 -type f | tr '\n' ' ')"

# As environment.sh has it, seen from within; its own search for CUDA's libraries is done here.
# There is no shell in it for bin/mpirun, so what that says is said here.
within=$(BRUME_BUNDLE="/$name" LD_LIBRARY_PATH='' bash -c '. "$1" && env' - "$root/$name/environment.sh" |
  grep -E '^(PATH|OPAL_|PMIX_|OMPI_)' | sed "s|^PATH=.*|PATH=/$name/bin|")
mpirun=/$name/libexec/openmpi/bin/mpirun
failed=0 chroot=$(PATH=$PATH:/usr/sbin command -v chroot)
# in_root LIBRARIES CODE SAYS COMMAND...
in_root() {
  local libraries=$1 code=$2 says=$3 got=0
  shift 3
  env -i $within OMPI_MCA_plm=isolated HOME=/root TMPDIR=/tmp OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    LD_LIBRARY_PATH="/cuda$libraries" "$chroot" "$root" "$@" > "$root/tmp/out" 2>&1 || got=$?
  if [ "$got" -ne "$code" ] || { [ -n "$says" ] && ! grep -qE -- "$says" "$root/tmp/out"; }; then
    echo "FAILED: $* ended with $got instead of $code, or did not say '$says':"
    tail -n 15 "$root/tmp/out"
    failed=1
  else
    echo "ok ($got): $*: $(grep -E -m 1 -- "$says" "$root/tmp/out" | cut -c 1-150 || true)"
  fi
}
if grep -q 'of CUDA: .*libcuda' "$root/$name/manifest"; then
  driver='libcuda.so.1: cannot open shared object file'
  for program in "$root/$name"/bin/brume "$root/$name"/tests/*; do
    # What asks the CUDA runtime alone hears from that that there is no driver, and skips its tests.
    if grep -q 'libcuda\.so\.1' "$program"; then
      in_root '' 127 "$driver" "${program#"$root"}"
    else
      in_root '' 77 '' "${program#"$root"}"
    fi
  done
  for program in "$root/$name"/tests/gpu_*; do in_root ':/stub' 77 '' "${program#"$root"}"; done
  in_root ':/stub' 4 'device|driver' "/$name/bin/brume" selftest
else
  for program in "$root/$name"/tests/*; do in_root '' 0 'PASSED' "${program#"$root"}"; done
  in_root '' 0 'passed' "$mpirun" -n 2 --oversubscribe "/$name/bin/brume" selftest
fi
in_root '' 0 'Open' "$mpirun" --version
in_root ':/stub' 0 '^brume' "/$name/bin/brume" --version
in_root ':/stub' 0 'tokens/s' "/$name/bin/brume" plan "/$name/share/brume/inputs/llama-8b.toml"
in_root ':/stub' 0 '^brume' "$mpirun" -n 2 --oversubscribe "/$name/bin/brume" --version
exit $failed
