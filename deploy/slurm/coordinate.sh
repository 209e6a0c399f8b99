
# The end of a job that coordinates: $arguments are hedgerow's, $recipe those that it may be given in addition.
# The recipe is for the run's beginning, or what was changed since; later rounds go on with what the run recorded.
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -e "$run/run.toml" ] || arguments+=("${recipe[@]}")
supervise "${inside[@]}" "$hedgerow" "${arguments[@]}"
[ -z "$tender" ] || end_tending
# 4: interrupted, and can go on. Without a signal it was 'hedgerow stop', which means it.
[ "$code" = 4 ] && [ -n "$told" ] && back_to_the_queue
exit "$code"
