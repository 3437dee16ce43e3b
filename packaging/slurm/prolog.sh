#!/bin/sh
# Slurm's Prolog: starts an agent for the job on this node, as the job's user. The task prolog tells it to the job.
#
#   Prolog=/etc/foreread/prolog.sh    TaskProlog=/etc/foreread/task_prolog.sh    Epilog=/etc/foreread/epilog.sh
#
# settings.sh next to it has the memory, and the control process if there is one. A prolog that fails would drain the
# node. So a job without an agent is a line in slurmd's log, and reads storage by itself.

# Slurm sets none.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
here=$(dirname "$(readlink -f "$0")")
. "$here/settings.sh"

directory="$FOREREAD_RUN/$SLURM_JOB_ID-$SLURMD_NODENAME"
mkdir -p "$FOREREAD_RUN" && mkdir -m 700 "$directory" && chown "$SLURM_JOB_USER" "$directory" || exit 0

set -- --memory "$FOREREAD_MEMORY" --socket "$directory/node.sock"
if [ -n "$FOREREAD_CONTROL" ]; then
    # One file for each user, which that user alone can read.
    set -- "$@" --control "$FOREREAD_CONTROL" --control-token "$FOREREAD_TOKENS/$SLURM_JOB_USER" \
        --node "$SLURMD_NODENAME-$SLURM_JOB_ID"
fi
setpriv --reuid "$SLURM_JOB_USER" --regid "$(id -g "$SLURM_JOB_USER")" --init-groups \
    "$FOREREAD" agent start "$@" || echo "no agent for job $SLURM_JOB_ID on $SLURMD_NODENAME" >&2
exit 0
