// hedgerow: the command that people type. Never loads LibTorch, so that it starts in milliseconds
// on a login node.
#include "coordinator/cli/app.hpp"
#include "storage/base/openmp_spin.hpp"
#include "storage/files/file.hpp"

int main(int argc, char** argv) {
  hedgerow::storage::let_large_writes_fail();
  hedgerow::storage::limit_openmp_spinning();  // for the workers and ranks that it starts
  const auto console = hedgerow::coordinator::cli::system_console();
  return static_cast<int>(hedgerow::coordinator::cli::run({argv + 1, argv + argc}, *console));
}
