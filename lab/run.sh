#!/usr/bin/env bash
# lab/run.sh: run a command on a kernel that has RDMA (soft-RoCE), in a small emulated machine.
#
# Boots Debian's kernel in QEMU, without KVM, over a read-only view of this machine's own root file system, makes soft-RoCE
# devices and namespaces (see guest/setup), runs the command as root, prints its output, and exits with its status.
# `cargo xtask lab` is the usual way to call it.
#
#   run.sh [options] [--] COMMAND [ARG...]
#
#   -s DIR       share DIR for writing at the same path (repeatable); whatever else the command writes is thrown away
#   -n N         soft-RoCE devices, and namespaces h0..h(N-1)           (2)
#   --mtu N      MTU of their links; from 4200 on RoCE has 4096         (4500)
#   -e NAME[=V]  pass an environment variable (repeatable). Always passed: PATH LANG RUST_BACKTRACE RUST_LOG
#   -c N         processors (2)             -m MB  memory (2048)
#   -t SECONDS   limit of the whole run (300); over it the status is 124
#   -k PACKAGE   kernel (linux-image-6.12-amd64); linux-image-amd64 is Debian 12's 6.1
#   --prepare    only fill the cache        -v     show boot log and timings
#
# Status: the command's own; 124 too slow; 125 the machine could not be prepared, booted or finished.
#
# Faults, for the command to make:
#   a network's loss, delay, duplicates   ip netns exec sw tc qdisc replace dev p1 root netem loss 1%
#   a pulled cable                        ip -n sw link set p0 down
#   a port put down                       ip link set v0 down
#
# Needs bash, coreutils, binutils, xz or zstd as the kernel asks, dpkg-deb, and apt-get with a way to its packages. Nothing is
# installed: about 180 MB are fetched into the cache, $RCCL_LAB_CACHE or .cache/lab of the workspace.
set -euo pipefail

FORMAT=1 # of the cache; raise it when anything changes that fills it
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

die() { echo "lab: $*" >&2; exit 125; }
say() { if ((verbose)); then echo "lab: $*" >&2; fi; }

shares=() pass=(PATH LANG RUST_BACKTRACE RUST_LOG)
devices=2 mtu=4500 cpus=2 mem=2048 limit=300 kernel=${RCCL_LAB_KERNEL:-linux-image-6.12-amd64}
prepare=0 verbose=0
while (($#)); do
  case $1 in
    -s) shares+=("$(cd "$2" && pwd -P)") || die "no directory $2"; shift 2 ;;
    -n) devices=$2; shift 2 ;;
    --mtu) mtu=$2; shift 2 ;;
    -e) pass+=("$2"); shift 2 ;;
    -c) cpus=$2; shift 2 ;;
    -m) mem=$2; shift 2 ;;
    -t) limit=$2; shift 2 ;;
    -k) kernel=$2; shift 2 ;;
    --prepare) prepare=1; shift ;;
    -v) verbose=1; shift ;;
    -h | --help) sed -n '2,/^set -euo/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --) shift; break ;;
    -*) die "unknown option $1 (see --help)" ;;
    *) break ;;
  esac
done
(($#)) || ((prepare)) || die "no command (see --help)"
for program in apt-get dpkg-deb strip; do
  command -v "$program" >/dev/null || die "$program is not here; the lab needs Debian or Ubuntu (or their apt, dpkg and binutils)"
done
[[ $(uname -m) == x86_64 ]] || die "the lab emulates x86_64 over this machine's own files, and this machine is $(uname -m)"

cache=${RCCL_LAB_CACHE:-$here/../.cache/lab}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd -P)
image=$cache/$FORMAT-$kernel

# ------------------------------------------------------------------------------------------------------ filling the cache
qemu_packages=(qemu-system-x86)
guest_packages=(busybox-static iproute2 libibverbs1 ibverbs-providers librdmacm1 perftest libnl-3-200 libnl-route-3-200
  libibumad3 libpci3)
modules=(crc32_generic virtio_pci virtio_console 9pnet_virtio 9p overlay rdma_rxe rdma_ucm veth bridge sch_netem)

fetch() { # DIR PACKAGE...: the packages, and those they depend on that this machine lacks
  local d=$1
  shift
  mkdir -p "$d/partial"
  apt-get -qq -y --no-install-recommends --download-only --reinstall \
    -o Dir::Cache::archives="$d" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
    -o APT::Sandbox::User=root -o Debug::NoLocking=1 install "$@" </dev/null >>"$work/apt.log" 2>&1
}
fetch_alone() { # DIR PACKAGE: without what it depends on
  mkdir -p "$1"
  (cd "$1" && apt-get -qq -o APT::Sandbox::User=root download "$2") </dev/null >>"$work/apt.log" 2>&1
}
unpack() { local d; for d in "$1"/*.deb; do dpkg-deb -x "$d" "$2"; done; }

declare -A module_file=() module_done=()
add_module() { # NAME: after what it depends on, into $root/modules, in loading order
  local m=${1//-/_} f dep
  [[ -z ${module_done[$m]:-} ]] || return 0
  module_done[$m]=1
  f=${module_file[$m]:-}
  [[ -n $f ]] || return 0 # built in
  case $f in
    *.xz) xz -dc "$f" ;;
    *.zst) zstd -qdc "$f" ;;
    *) cat "$f" ;;
  esac >"$root/modules/$m.ko"
  for dep in $(tr '\0' '\n' <"$root/modules/$m.ko" | grep -a '^depends=' | head -1 | cut -d= -f2 | tr , ' '); do
    add_module "$dep"
  done
  # Without its signature a module loads faster: checking one takes long under emulation.
  strip -g "$root/modules/$m.ko" 2>/dev/null || :
  echo "$m" >>"$root/modules.list"
}
number() { od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }
extract_kernel() { # BZIMAGE OUT: the bare kernel boots without its own slow unpacking
  local setup off len payload=$work/payload
  setup=$(number "$1" $((0x1f1)) 1)
  ((setup)) || setup=4
  off=$(((setup + 1) * 512 + $(number "$1" $((0x248)) 4))) len=$(number "$1" $((0x24c)) 4)
  tail -c +$((off + 1)) "$1" | head -c $((len - 4)) >"$payload" || : # its last 4 bytes are the size
  case $(od -An -t x1 -N 4 "$payload" | tr -d ' ') in
    28b52ffd) zstd -qdc "$payload" >"$2" 2>/dev/null ;;
    fd377a58) { tail -c +$((off + 1)) "$1" | head -c "$len" | xz -dc --single-stream; } >"$2" 2>/dev/null ;;
    *) false ;;
  esac || : # xz complains of the bytes after its stream
  [[ $(head -c 4 "$2" | tail -c 3) == ELF ]]
}

fill_cache() {
  local real f m d try started=$SECONDS
  work=$(mktemp -d "$cache/work.XXXXXX")
  root=$work/root
  mkdir -p "$work/new"
  apt-cache show "$kernel" perftest >/dev/null 2>&1 || apt-get -qq update </dev/null >>"$work/apt.log" 2>&1 || :
  for try in 1 2 3; do
    real=$(apt-cache depends "$kernel" 2>/dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ {print $2; exit}')
    real=${real:-$kernel}
    ((try > 1)) || echo "lab: fetching $real, QEMU and the RDMA programs into $image (about 180 MB)" >&2
    if fetch_alone "$work/k" "$real" && fetch "$work/q" "${qemu_packages[@]}" && fetch "$work/g" "${guest_packages[@]}"; then
      break
    fi
    ((try < 3)) || { tail -20 "$work/apt.log" >&2; die "apt-get cannot fetch the packages; see above"; }
    sleep $((5 * try))
    apt-get -qq update </dev/null >>"$work/apt.log" 2>&1 || :
  done
  say "fetched after $((SECONDS - started)) s"
  unpack "$work/q" "$work/new/qemu"
  unpack "$work/k" "$work/kernel"
  unpack "$work/g" "$work/tools"

  f=$(echo "$work"/kernel/boot/vmlinuz-*)
  if ! extract_kernel "$f" "$work/new/kernel"; then
    say "no bare kernel in $f: it boots packed"
    cp "$f" "$work/new/kernel"
  fi
  mkdir -p "$root"/{bin,proc,sys,dev,modules,host,ov,newroot,tools/usr/bin,tools/usr/sbin,tools/usr/lib,tools/etc}
  : >"$root/modules.list"
  while read -r f; do
    m=${f##*/} m=${m%%.ko*}
    module_file[${m//-/_}]=$f
  done < <(find "$work/kernel" -name '*.ko' -o -name '*.ko.xz' -o -name '*.ko.zst')
  for m in "${modules[@]}"; do add_module "$m"; done
  [[ -s $root/modules/rdma_rxe.ko ]] || die "$real has no rdma_rxe"
  f=$(find "$work/tools" -name busybox -type f -perm -u+x | head -1)
  [[ -n $f ]] || die "busybox-static has no busybox"
  cp "$f" "$root/bin/busybox"
  for d in bin sbin lib; do # Debian's / is merged into /usr; some packages still say /bin
    [[ ! -d $work/tools/$d ]] || cp -a "$work/tools/$d/." "$root/tools/usr/$d/"
    [[ ! -d $work/tools/usr/$d ]] || cp -a "$work/tools/usr/$d/." "$root/tools/usr/$d/"
  done
  rm -f "$root/tools/usr/bin/busybox"
  [[ ! -d $work/tools/etc ]] || cp -a "$work/tools/etc/." "$root/tools/etc/"
  rm -rf "$root"/tools/usr/lib/systemd "$root"/tools/usr/lib/udev "$root"/tools/etc/init.d
  : >"$root/init" # taken from guest/ at every run
  (cd "$root" && find . | LC_ALL=C sort | ./bin/busybox cpio -o -H newc 2>/dev/null) >"$work/new/initrd"
  cp "$root/bin/busybox" "$work/new/busybox"
  echo "$real" >"$work/new/version"
  rm -rf "$image"
  mv "$work/new" "$image"
  rm -rf "$work"
  say "the cache was filled in $((SECONDS - started)) s: $(du -sh "$image" | cut -f1)"
}

qemu() {
  local q=$image/qemu
  LD_LIBRARY_PATH=$q/usr/lib/x86_64-linux-gnu:$q/lib/x86_64-linux-gnu exec "$q/usr/bin/qemu-system-x86_64" "$@"
}
is_usable() {
  [[ -s $image/version && -s $image/kernel && -s $image/initrd && -x $image/busybox ]] &&
    (qemu --version) >/dev/null 2>&1
}

# ---------------------------------------------------------------------------------------------------------------- the run
work='' run='' children=()
cleanup() {
  local p
  for p in "${children[@]}"; do kill "$p" 2>/dev/null || :; done
  for p in "${children[@]}"; do wait "$p" 2>/dev/null || :; done
  [[ -z $run ]] || rm -rf "$run"
  [[ -z $work ]] || rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

exec 9>"$cache/lock"
if command -v flock >/dev/null; then flock 9; fi
if ! is_usable; then
  fill_cache
  is_usable || die "the unpacked QEMU does not start here: $( (qemu --version) 2>&1 | tail -1)"
fi
exec 9>&-
((!prepare)) || exit 0

run_script() {
  local v
  for v in "${pass[@]}"; do
    case $v in
      *=*) printf 'export %s=%q\n' "${v%%=*}" "${v#*=}" ;;
      *) if [[ -n ${!v+x} ]]; then printf 'export %s=%q\n' "$v" "${!v}"; fi ;;
    esac
  done
  echo 'export RCCL_LAB=1 HOME=/run; ulimit -l unlimited; ulimit -c 0'
  printf 'cd %q || exit 125\n' "$PWD"
  printf 'exec'
  printf ' %q' "$@"
  echo
}

start_qemu() {
  local files=() i q=$image/qemu
  for i in "${!shares[@]}"; do
    files+=(-fsdev "local,id=s$i,path=${shares[i]//,/,,},security_model=none,multidevs=remap"
      -device "virtio-9p-pci,fsdev=s$i,mount_tag=share$i")
  done
  qemu -L "$q/usr/share/qemu" -L "$q/usr/share/seabios" -L "$q/usr/lib/ipxe/qemu" \
    -accel tcg,thread=multi,tb-size=512 -cpu max,-la57 -M pc -smp "$cpus" -m "$mem" \
    -nodefaults -no-user-config -display none -no-reboot -kernel "$image/kernel" -initrd "$run/initrd" \
    -append "console=ttyS0 loglevel=5 oops=panic panic=-1 mitigations=off tsc=reliable no_timer_check nowatchdog random.trust_cpu=on" \
    -chardev "file,id=console,path=$run/console" -serial chardev:console -device virtio-serial-pci \
    -chardev "file,id=out,path=$run/out,append=on" -device virtserialport,chardev=out,name=out \
    -chardev "file,id=err,path=$run/err,append=on" -device virtserialport,chardev=err,name=err \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=ctl,path=$run/ctl,security_model=none" -device virtio-9p-pci,fsdev=ctl,mount_tag=ctl \
    "${files[@]}" </dev/null >"$run/qemu.log" 2>&1
}

run=$(mktemp -d "${TMPDIR:-/tmp}/rccl-lab.XXXXXX")
mkdir "$run/ctl" "$run/first"
mkfifo "$run/out" "$run/err"
: >"$run/ctl/shares"
((${#shares[@]} == 0)) || printf '%s\n' "${shares[@]}" >"$run/ctl/shares"
{ echo "DEVICES=$devices MTU=$mtu"; cat "$here/guest/setup"; } >"$run/ctl/setup"
run_script "$@" >"$run/ctl/run"
# A second archive behind the first replaces its empty init.
cp "$here/guest/init" "$run/first/init"
chmod 755 "$run/first/init"
cp "$image/initrd" "$run/initrd"
(cd "$run/first" && echo init | "$image/busybox" cpio -o -H newc 2>/dev/null) >>"$run/initrd"

# Starts the machine and waits until it has ended; $ended is QEMU's status.
run_machine() {
  # Should our own reader go away, the machine must not block: its output is then dropped.
  { cat || :; cat >/dev/null; } <"$run/out" & out=$!
  { cat >&2 || :; cat >/dev/null; } <"$run/err" & err=$!
  children+=($out $err)
  : >"$run/console"
  start_qemu & machine=$!
  children+=($machine)
  # The limits: a watchdog that ends this machine, and only it.
  (
    trap 'kill "$nap" 2>/dev/null; exit' TERM
    wait_for() { sleep "$1" & nap=$!; wait "$nap"; }
    first=$((limit < boot_limit ? limit : boot_limit))
    wait_for "$first"
    if is_up && ((limit > first)); then wait_for "$((limit - first))"; fi
    : >"$run/late"
    kill "$machine" 2>/dev/null
  ) </dev/null >/dev/null 2>&1 & watchdog=$!
  children+=($watchdog)
  ended=0
  wait "$machine" || ended=$?
  kill "$watchdog" 2>/dev/null || :
  # If QEMU never opened these, their readers still wait for a writer.
  : 1<>"$run/out"
  : 1<>"$run/err"
  wait "$out" "$err" 2>/dev/null || :
}
boot_limit=60
is_up() { grep -qa 'lab: .* kernel up' "$run/console"; }

started=$EPOCHREALTIME
# Emulated processors now and then trip over code that a booting kernel changes under them: then it is started anew.
for ((attempt = 1; attempt <= 3; attempt++)); do
  run_machine
  if is_up || [[ -s $run/ctl/status ]]; then break; fi
  echo "lab: the kernel did not come up (attempt $attempt of 3)" >&2
  ((attempt == 3)) || rm -f "$run/late"
done
say "$(<"$image/version"): $(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.2f s", b - a}')"
if ((verbose)); then tr -d '\r' <"$run/console" >&2; fi

if [[ -s $run/ctl/status ]]; then exit "$(<"$run/ctl/status")"; fi
if ((!verbose)); then tail -30 "$run/console" 2>/dev/null | tr -d '\r' >&2; fi
cat "$run/qemu.log" >&2
if [[ -e $run/late ]]; then
  echo "lab: not done after $limit s" >&2
  exit 124
fi
die "the machine ended without a status (QEMU's: $ended)"
