#!/bin/sh
# Slurm's TaskProlog: its output sets variables of the task, which finds the agent of the prolog by them.

# Slurm sets none.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
here=$(dirname "$(readlink -f "$0")")
. "$here/settings.sh"

socket="$FOREREAD_RUN/$SLURM_JOB_ID-$SLURMD_NODENAME/node.sock"
if [ -S "$socket" ]; then
    echo "export FOREREAD_AGENT=$socket"
fi
exit 0
