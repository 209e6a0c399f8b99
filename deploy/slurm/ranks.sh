
# With an image: $ranks ranks of $worker; $across_nodes are more words for mpirun where they are on several nodes.
words=()
# A job that ends says TERM to all; mpirun would kill its ranks two seconds later, in the middle of a checkpoint.
env --block-signal=TERM true 2> /dev/null && words=(env --block-signal=TERM)
# Ranks in namespaces of their own cannot copy out of each other's memory.
words+=(mpirun --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none "${across_nodes[@]}")
[ "$(id -u)" != 0 ] || words+=(--allow-run-as-root)
exec "${words[@]}" -n "$ranks" "${inside[@]}" "$worker" finetune --run "$run" --wait "$wait_s" \
  >> "$run/logs/finetune.log" 2>&1
