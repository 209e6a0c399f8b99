// Makes the files of keys/ and puts new ones in their place. Each file is published by rename and
// the order is such that a crash at any point is mended by the same call again. Called by `hedgerow
// keygen`; formats in coordinator/README.md "Keys".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

struct KeyRequest {
  std::vector<std::string> workers;  // pairs of workers, by name
  bool of_coordinator = true;        // also the coordinator's pair and the secret for HTTP
  bool rotate = false;               // new ones in place of those that are there
};

struct KeyReport {
  std::vector<std::string> written;                // names in keys/, in order
  std::map<std::string, std::string> public_keys;  // by pair; secrets are never reported
};

// Worker pairs that keys/ has.
[[nodiscard]] std::vector<std::string> worker_pairs(const storage::RunLayout& layout);

// Makes what of the request is missing; with `rotate` makes all of it anew, and takes the old
// public keys off the list. Lines of the list that are about other keys stay as they are. The run
// directory is made if it is absent. Throws kUsage (a name that no file can have, files that others
// may touch), kUnavailable (no random numbers), and what writing throws.
[[nodiscard]] KeyReport make_keys(const storage::RunLayout& layout, const KeyRequest& request);

}  // namespace hedgerow::coordinator
