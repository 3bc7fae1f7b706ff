#!/bin/sh
# Runs a small Slurm cluster for the duration of one command: munged, slurmctld and two slurmd ("n1"
# and "n2", four CPUs each) on this machine. It has its own namespaces for processes and network, so
# that it ends with this script and its ports are private. It uses a folder that is removed at the
# end.
#   slurm_bed.sh COMMAND...     SLURM_CONF is set for it
# Exits with code 77 if this machine cannot run it; the reason is on standard error.
set -u
umask 022 # munged requires that others can read its folder

skip() { echo "no Slurm bed: $*" >&2; exit 77; }
PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd srun sinfo setpriv unshare ip; do
  command -v $program > /dev/null || skip "$program is not installed"
done
[ "$(id -u)" = 0 ] || skip "not root"
getent passwd munge > /dev/null || skip "there is no user munge"

if [ -z "${SLURM_BED:-}" ]; then
  # The temporary folder does not work: munged requires a path that only root and its user can write
  # to.
  SLURM_BED=$(mktemp -d /var/lib/tutti-slurm-bed.XXXXXX) || skip "cannot make a folder"
  export SLURM_BED
  trap 'rm -rf "$SLURM_BED"' EXIT
  unshare --pid --net --mount true || skip "no namespaces here"
  unshare --pid --net --mount --fork --kill-child --mount-proc "$0" "$@"
  exit
fi

# This part runs inside the namespaces. All its processes end with this shell.
ip link set lo up
# Resolvers find no address at all if there is none beside loopback.
ip link add bed0 type bridge && ip address add 10.84.0.1/24 dev bed0 && ip link set bed0 up ||
  skip "no bridge here"
bed=$SLURM_BED
host=$(hostname)
chmod 0755 "$bed"
mkdir "$bed/munge" "$bed/state" "$bed/n1" "$bed/n2"
head -c 128 /dev/urandom > "$bed/munge/key"
chown -R munge: "$bed/munge"
chmod 0400 "$bed/munge/key"

cat > "$bed/slurm.conf" <<CONF
ClusterName=tutti
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=6817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$bed/munge/socket
StateSaveLocation=$bed/state
SlurmdSpoolDir=$bed/%n
SlurmctldPidFile=$bed/slurmctld.pid
SlurmdPidFile=$bed/slurmd.%n.pid
SlurmctldLogFile=$bed/slurmctld.log
SlurmdLogFile=$bed/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
MpiDefault=none
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=6819 CPUs=4
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=6820 CPUs=4
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$bed/slurm.conf"

failed() { echo "the Slurm bed did not start: $*" >&2; tail -n 20 "$bed"/*.log >&2; exit 1; }

setpriv --reuid munge --regid munge --clear-groups munged --foreground \
  --key-file="$bed/munge/key" --socket="$bed/munge/socket" --pid-file="$bed/munge/pid" \
  --log-file="$bed/munge/log" --seed-file="$bed/munge/seed" > "$bed/munged.log" 2>&1 &
for _ in $(seq 100); do [ -S "$bed/munge/socket" ] && break; sleep 0.05; done
[ -S "$bed/munge/socket" ] || failed munged

slurmctld -D -c > "$bed/slurmctld.out.log" 2>&1 &
for node in n1 n2; do
  slurmd -D -N $node > "$bed/$node.out.log" 2>&1 &
done
idle=0
for _ in $(seq 100); do
  idle=$(timeout 1 sinfo -h -t idle -o %D 2> /dev/null)
  [ "$idle" = 2 ] && break
  sleep 0.1
done
[ "$idle" = 2 ] || failed "its nodes are not idle"

"$@"
