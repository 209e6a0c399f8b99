# Sourced by deploy/quickstart and tests/run: which build suits this machine. CUDA where a GPU is; a CPU build is lighter and starts
# faster.
pick_preset() { if nvidia-smi -L >/dev/null 2>&1; then echo cuda; else echo cpu; fi; }

# set_up PRESET OPTIONS...: what building that preset needs.
set_up() {
  local preset=$1
  shift
  [ "$preset" != cuda ] || set -- "$@" --cuda
  deploy/setup "$@"
}
