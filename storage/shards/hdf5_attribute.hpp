// Scalar attributes of a file's root group: UTF-8 strings and 64-bit integers, as h5py writes a str
// and a numpy.int64. Included by .cpp files of storage only.
#pragma once

#include <cstdint>
#include <string>

namespace hedgerow::storage::hdf5 {

class Handle;

// Throw kCorrupt naming the attribute if it is absent, of another type, or not a scalar.
[[nodiscard]] std::string read_text(const Handle& file, const char* name, const std::string& path);
[[nodiscard]] std::int64_t read_integer(const Handle& file,
                                        const char* name,
                                        const std::string& path);

void write_text(const Handle& file,
                const char* name,
                const std::string& value,
                const std::string& path);
void write_integer(const Handle& file,
                   const char* name,
                   std::int64_t value,
                   const std::string& path);

}  // namespace hedgerow::storage::hdf5
