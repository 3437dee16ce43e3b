# The settings of prolog.sh, task_prolog.sh and epilog.sh. Only root may write to this directory.

# The program.
FOREREAD=/usr/local/bin/foreread

# The memory of a job's agent on each node. Slurm does not count it for the job: leave it out of RealMemory.
FOREREAD_MEMORY=64GiB

# A directory of root on each node, for the sockets of agents.
FOREREAD_RUN=/run/foreread

# The control process of the cluster, and a directory with a token file for each user. Empty: none.
FOREREAD_CONTROL=
FOREREAD_TOKENS=/etc/foreread/tokens
