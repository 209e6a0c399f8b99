// A history as TensorBoard reads it: an event file of scalars. Written by hand, because it takes
// four fields of two protobuf messages; https://github.com/tensorflow/tensorflow has the formats in
// core/util/event.proto, core/framework/summary.proto and core/lib/io/record_writer.cc.
#pragma once

#include <filesystem>

#include "storage/history/history.hpp"

namespace hedgerow::storage {

// Writes directory/events.out.tfevents.<second of the first row>.hedgerow, atomically; the
// directory is made. A tag is series/column, "layer/12/mse"; what was not measured (NaN) is left
// out. An equal history gives equal bytes. A later history of the same run replaces the file, since
// TensorBoard would draw both. Throws what write_atomically does, and
// std::filesystem::filesystem_error if the directory cannot be made.
void write_tensorboard(const std::filesystem::path& directory, const History& history);

}  // namespace hedgerow::storage
