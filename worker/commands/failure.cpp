#include "worker/commands/failure.hpp"

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <new>

#include "storage/filesystem_error.hpp"

namespace hedgerow::worker {

Failure current_failure() {
  using storage::ExitCode;
  try {
    throw;
  } catch (const storage::Error& error) {
    return {error.what(), storage::exit_code(error.kind())};
  } catch (const c10::OutOfMemoryError& error) {
    return {error.what_without_backtrace(), ExitCode::kEnvironment};
  } catch (const c10::Error& error) {
    return {error.what_without_backtrace(), ExitCode::kFailed};
  } catch (const std::bad_alloc&) {
    return {"out of memory; use fewer sequences per forward or a machine with more memory",
            ExitCode::kEnvironment};
  } catch (const std::filesystem::filesystem_error& error) {
    const storage::Error known = storage::system_error(error);
    return {known.what(), storage::exit_code(known.kind())};
  } catch (const std::exception& error) {
    return {error.what(), ExitCode::kFailed};
  } catch (...) {
    return {"an exception of unknown type", ExitCode::kFailed};
  }
}

}  // namespace hedgerow::worker
