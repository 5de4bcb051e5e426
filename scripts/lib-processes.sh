# shellcheck shell=bash
# Training on several processes, on one machine or on several: how they are started by torchrun, and
# what each takes of the batch. Sourced by lib-train.sh; it defines
#
#     PROCESSES NODES NODE RENDEZVOUS   what the command line says
#     PROCESSES_HELP                    what to say of that
#     check_processes                   stops unless it makes sense
#     count_processes                   all of them, on all machines
#     is_first_node                     whether this machine is the one that evaluates
#     set_start                         START: the words that start a module in all processes of
#                                       this machine
#     set_share TOKENS FREQ             SHARE: the flags by which all processes together take the
#                                       batch of one with --max-tokens TOKENS --update-freq FREQ
#     check_share DATA TOKENS           stops if a training sentence has more than TOKENS

PROCESSES=1 NODES=1 NODE="" RENDEZVOUS=""

PROCESSES_HELP='  --processes N   processes on this machine, one for each GPU; together they take the batch
                  of one             (default 1)
  --nodes N       machines; the command runs on each of them, with OUT in a shared folder
  --node-rank I   number of this machine, from 0; the first one evaluates
  --rendezvous HOST:PORT
                  the first machine, and a port that is free there'

check_processes() {
    [[ "$PROCESSES" =~ ^[1-9][0-9]{0,3}$ ]] ||
        die "--processes must be a whole number, 1 or more, but is '$PROCESSES'"
    [[ "$NODES" =~ ^[1-9][0-9]{0,3}$ ]] ||
        die "--nodes must be a whole number, 1 or more, but is '$NODES'"
    if ((NODES == 1)); then
        [[ -z "$NODE$RENDEZVOUS" ]] || die "--node-rank and --rendezvous must come with --nodes, 2 or more"
        return
    fi
    [[ "$NODE" =~ ^(0|[1-9][0-9]{0,3})$ ]] && ((NODE < NODES)) ||
        die "--node-rank must be a number from 0 to $((NODES - 1)) of its own on each machine, but is '$NODE'"
    [[ "$RENDEZVOUS" =~ ^[^:]+:[0-9]+$ ]] ||
        die "--rendezvous must be HOST:PORT, the same on all machines, but is '$RENDEZVOUS'"
}

count_processes() { echo "$((PROCESSES * NODES))"; }

is_first_node() { ((${NODE:-0} == 0)); }

set_start() {
    START=("$PYTHON")
    (($(count_processes) > 1)) || return 0
    START+=(-m torch.distributed.run --nproc-per-node "$PROCESSES")
    if ((NODES > 1)); then
        START+=(--nnodes "$NODES" --node-rank "$NODE"
            --master-addr "${RENDEZVOUS%:*}" --master-port "${RENDEZVOUS##*:}")
    else
        START+=(--standalone)
    fi
}

# Fewer micro-batches first, which changes nothing; what is left divides the tokens of each.
set_share() {
    local tokens="$1" freq="$2" left divisor rest
    left="$(count_processes)"
    SHARE=()
    ((left > 1)) || return 0
    divisor="$freq" rest="$left"
    while ((rest)); do
        read -r divisor rest <<<"$rest $((divisor % rest))"
    done
    SHARE=(--update-freq "$((freq / divisor))" --max-tokens "$((tokens / (left / divisor)))")
}

# fairseq leaves a longer sentence out of the training, and says so in the log alone.
check_share() {
    local longest
    (($(count_processes) > 1)) || return 0
    longest="$("$PYTHON" "$ROOT/scripts/longest.py" "$1"/train.*-*.*.idx 2>&1)" || die "$longest"
    ((longest <= $2)) ||
        die "each process takes --max-tokens $2, but a training sentence has $longest: give fewer" \
            "--processes, or after -- a --max-tokens and an --update-freq for each process"
}
