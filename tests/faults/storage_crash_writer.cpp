// The program that storage_crash_test kills: storage_crash_writer RUN_DIR ACKNOWLEDGED. Appends one
// byte to the file ACKNOWLEDGED for each committed file; the exit code is that of the error.
#include <array>
#include <cstdio>
#include <exception>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/faults/storage_crash_job.hpp"

int main(int argc, char** argv) {
  using namespace hedgerow;
  if (argc != 3) {
    std::fputs("usage: storage_crash_writer RUN_DIR ACKNOWLEDGED\n", stderr);
    return static_cast<int>(storage::ExitCode::kUsage);
  }
  try {
    storage::File acknowledged = storage::File::open_append(argv[2]);
    tests::run_crash_job({}, storage::RunLayout(argv[1]), [&](int) {
      acknowledged.write_all(std::array{std::byte{'a'}});
    });
    return 0;
  } catch (const storage::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(storage::exit_code(error.kind()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(storage::ExitCode::kFailed);
  }
}
