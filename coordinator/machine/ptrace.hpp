// Whether a process may copy out of another one's memory, which is what Open MPI's single-copy way
// between the ranks of a host (CMA) does. It does not ask first: where a copy is denied, every
// message fails.
#pragma once

#include <filesystem>
#include <functional>

namespace hedgerow::machine {

// `yama`: the kernel's file with its rule for processes of one user: 1 or more denies those that
// are no parent. `copies`: process_vm_readv of this process's own memory works; containers whose
// system calls are filtered deny even that.
[[nodiscard]] bool may_copy_between_processes(const std::filesystem::path& yama,
                                              const std::function<bool()>& copies);
[[nodiscard]] bool may_copy_between_processes();  // on this host

}  // namespace hedgerow::machine
