// hedgerow-worker: the process that computes. People rarely start it; `hedgerow` does, locally, by
// mpirun, Slurm or Kubernetes. Exit codes are storage::ExitCode's.
#include <torch/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "kernels/vector_math.hpp"
#include "storage/base/build_info.hpp"
#include "storage/base/openmp_spin.hpp"
#include "storage/files/file.hpp"
#include "worker/commands/commands.hpp"
#include "worker/device/large_blocks.hpp"
#include "worker/task/failure.hpp"

namespace {

using hedgerow::storage::ExitCode;

constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 partial, 4 interrupted and resumable, 5 environment.";

int run(int argc, char** argv) {
  CLI::App app("hedgerow-worker: computes the tasks of a linearization job", "hedgerow-worker");
  app.require_subcommand(1);
  app.footer(kFooter);
  app.set_version_flag("--version",
                       "hedgerow-worker " + hedgerow::storage::version() + " (" +
                           hedgerow::storage::git_hash() + "), LibTorch " + TORCH_VERSION);
  hedgerow::worker::Action action;
  hedgerow::worker::register_evaluate(app, action);
  hedgerow::worker::register_serve(app, action);
  hedgerow::worker::register_finetune(app, action);
  hedgerow::worker::register_answer(app, action);
  hedgerow::worker::register_generate(app, action);
  hedgerow::worker::register_merge(app, action);
  hedgerow::worker::register_lab(app, action);
  hedgerow::worker::register_probe_attention(app, action);
  hedgerow::worker::register_probe(app, action);
  hedgerow::worker::register_time_layer(app, action);
  hedgerow::worker::register_mpi_probe(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  try {
    hedgerow::worker::keep_large_blocks();
    hedgerow::kernels::resolve_vector_math();
    return static_cast<int>(action());
  } catch (...) {
    const auto failure =
        hedgerow::worker::current_failure({.name = app.get_subcommands().front()->get_name()});
    std::fprintf(stderr, "hedgerow-worker: %s\n", failure.message.c_str());
    return static_cast<int>(hedgerow::storage::exit_code(failure.kind));
  }
}

// A worker that neither `hedgerow` nor a local mpirun started (srun, a pod, a remote rank) has
// loaded libgomp with its defaults, so it starts again, as the same process: 0.2 s. By its own path
// instead of /proc/self/exe, which would become its name. Where exec fails it goes on as it is.
void limit_openmp_spinning(char** argv) {
  if (!hedgerow::storage::limit_openmp_spinning()) return;
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) ::execv(binary.c_str(), argv);
}

}  // namespace

int main(int argc, char** argv) {
  limit_openmp_spinning(argv);
  hedgerow::storage::let_large_writes_fail();
  const int code = run(argc, argv);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return code;  // sanitizers report at exit
#else
  // Only static destructors are left: LibTorch's unregister thousands of operators, a third of what
  // a process takes that has nothing else to do.
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}
