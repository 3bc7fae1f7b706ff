#!/usr/bin/env bash
# container_root.sh BUILD COMMAND: runs a shell command under the conditions of a container. It gets
# a separate root with the system's programs and the build (both read-only) and little else, 64 MiB
# of /dev/shm, a PID namespace in which it is process 1, and a user without capabilities, who cannot
# get any. Needs root.
set -euo pipefail
umask 022
exec unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
  root=/mnt build=$1 command=$2
  mount -t tmpfs -o mode=755 tmpfs $root
  mkdir $root/{proc,sys,dev,etc,tmp}
  mkdir $root/dev/shm
  chmod 1777 $root/tmp
  for folder in /usr /bin /sbin /lib /lib64; do
    if [[ -L $folder ]]; then
      cp -P $folder $root$folder
    elif [[ -d $folder ]]; then
      mkdir $root$folder
      mount --rbind -o ro $folder $root$folder
    fi
  done
  cp /etc/ld.so.cache $root/etc
  mount --rbind -o ro /sys $root/sys
  mount -t proc proc $root/proc
  mount -t tmpfs -o size=64m,mode=1777 tmpfs $root/dev/shm
  # This mount comes last, since the build may be below any of the other folders.
  mkdir -p "$root/$build"
  mount --bind -o ro "$build" "$root/$build"
  for device in null zero urandom; do
    touch $root/dev/$device
    mount --bind /dev/$device $root/dev/$device
  done
  cd $root
  # The user nobody, or the owner of the build if only the owner may read it.
  user=65534
  [[ $(stat -c %a "$build") == *5 ]] || user=$(stat -c %u "$build")
  exec chroot $root setpriv --reuid=$user --regid=$user --clear-groups --inh-caps=-all --bounding-set=-all \
    --no-new-privs --pdeathsig KILL sh -euc "$command"
' - "$1" "$2"
