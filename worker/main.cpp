// hedgerow-worker: the process that computes. People rarely start it; `hedgerow` does, locally, by
// mpirun, Slurm or Kubernetes. Exit codes are storage::ExitCode's.
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>

#include "storage/build_info.hpp"
#include "storage/error.hpp"
#include "storage/filesystem_error.hpp"
#include "worker/commands/commands.hpp"

namespace {

using hedgerow::storage::Error;
using hedgerow::storage::ExitCode;

constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 partial, 4 interrupted and resumable, 5 environment.";

int complain(const std::string& message, ExitCode code) {
  std::fprintf(stderr, "hedgerow-worker: %s\n", message.c_str());
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
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
  hedgerow::worker::register_generate(app, action);
  hedgerow::worker::register_merge(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  try {
    return static_cast<int>(action());
  } catch (const Error& error) {
    return complain(error.what(), hedgerow::storage::exit_code(error.kind()));
  } catch (const c10::OutOfMemoryError& error) {
    return complain(error.what_without_backtrace(), ExitCode::kEnvironment);
  } catch (const c10::Error& error) {
    return complain(error.what_without_backtrace(), ExitCode::kFailed);
  } catch (const std::bad_alloc&) {
    return complain("out of memory; use fewer sequences per forward or a machine with more memory",
                    ExitCode::kEnvironment);
  } catch (const std::filesystem::filesystem_error& error) {
    const Error known = hedgerow::storage::system_error(error);
    return complain(known.what(), hedgerow::storage::exit_code(known.kind()));
  } catch (const std::exception& error) {
    return complain(error.what(), ExitCode::kFailed);
  }
}
