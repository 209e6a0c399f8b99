# Sourced by deploy/setup, deploy/quickstart and tests/run: a step's output goes to a log, the terminal sees how far it is.
# The caller sets `log` and defines `fail`. Without a terminal: a line at the begin and one at the end.

progress_bar() {  # LABEL DONE TOTAL ELAPSED_S LEFT_S
  local filled=$(($2 * 24 / ($3 > 0 ? $3 : 1)))
  printf '\r  %-32s [%-24s] %3d s, about %d s left ' "$1" "$(printf '%*s' "$filled" '' | tr ' ' '#')" "$4" "$5"
}

clear_bar() { if [ -t 1 ]; then printf '\r%-94s\r' ''; fi; }

step_failed() {  # LABEL STATUS
  clear_bar
  tail -n 20 "$log" >&2
  fail "$1 failed with status $2; the whole output is in $log"
}

# run LABEL USUAL_SECONDS COMMAND...: progress by the time the command usually takes.
run() {
  local label=$1 usual=$2 begin=$SECONDS pid elapsed status=0
  shift 2
  [ -t 1 ] || echo "  $label (usually about $usual s)"
  echo "== $(date -u +%FT%TZ) $*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null &
  pid=$!
  while [ -t 1 ] && kill -0 "$pid" 2>/dev/null; do
    elapsed=$((SECONDS - begin))
    progress_bar "$label" $((elapsed < usual ? elapsed : usual - 1)) "$usual" "$elapsed" \
      $((usual > elapsed ? usual - elapsed : 1))
    sleep 0.3
  done
  wait "$pid" || status=$?
  ((status == 0)) || step_failed "$label" "$status"
  clear_bar
  echo "  $label: done in $((SECONDS - begin)) s"
}

# build LABEL COMMAND...: progress by ninja's own [done/total] lines.
build() {
  local label=$1 begin=$SECONDS line status=0 elapsed
  shift
  [ -t 1 ] || echo "  $label"
  echo "== $(date -u +%FT%TZ) $*" >>"$log"
  while IFS= read -r line; do
    echo "$line" >>"$log"
    if [ -t 1 ] && [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      elapsed=$((SECONDS - begin))
      progress_bar "$label" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$elapsed" \
        $((elapsed * (BASH_REMATCH[2] - BASH_REMATCH[1]) / BASH_REMATCH[1]))
    fi
  done < <("$@" 2>&1 </dev/null || echo "build-status $?")
  line=$(tail -n 1 "$log")
  [[ $line == "build-status "* ]] && status=${line#build-status }
  ((status == 0)) || step_failed "$label" "$status"
  clear_bar
  echo "  $label: done in $((SECONDS - begin)) s"
}
