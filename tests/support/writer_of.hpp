// A value as Journal::write_snapshot takes a state.
#pragma once

#include <nlohmann/json.hpp>

#include "storage/files/text_writer.hpp"

namespace hedgerow::tests {

inline storage::TextWriter writer_of(const nlohmann::json& value) {
  return [text = value.dump()](const storage::TextSink& sink) { sink(text); };
}

}  // namespace hedgerow::tests
