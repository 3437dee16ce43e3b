#!/bin/sh
# Slurm's Epilog: stops the agent of the job. It says goodbye to the control process, so that nothing stays reserved.

# Slurm sets none.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
here=$(dirname "$(readlink -f "$0")")
. "$here/settings.sh"

directory="$FOREREAD_RUN/$SLURM_JOB_ID-$SLURMD_NODENAME"
if [ -d "$directory" ]; then
    setpriv --reuid "$SLURM_JOB_USER" --regid "$(id -g "$SLURM_JOB_USER")" --init-groups \
        "$FOREREAD" agent stop --socket "$directory/node.sock"
    rm -rf "$directory"
fi
exit 0
