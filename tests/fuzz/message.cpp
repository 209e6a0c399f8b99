// wire::decode: a frame from any process that may connect. Also the names in it, which a
// coordinator or a worker turns into paths.
#include <vector>

#include "coordinator/wire/messages.hpp"
#include "storage/base/error.hpp"
#include "storage/files/run_layout.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace hedgerow;

const storage::RunLayout kRun("/nonexistent/run");

// Inside the directory, or refused.
void expect_contained(const std::string& name) {
  try {
    const std::string path = kRun.resolve(name).lexically_normal().string();
    fuzz::expect(path.starts_with("/nonexistent/run/"), "a name stays inside the run directory");
    fuzz::expect(path.find('\0') == std::string::npos, "no zero in a path");
  } catch (const storage::Error& error) {
    fuzz::expect(error.kind() == storage::ErrorKind::kUsage, "a refused name is kUsage");
  }
}

void expect_contained(const wire::Task& task) {
  for (const auto& file : task.inputs) expect_contained(file.name);
  if (task.resume) expect_contained(task.resume->name);
}

struct Names {
  void operator()(const wire::Hello& message) const {
    if (message.held) expect_contained(*message.held);
  }
  void operator()(const wire::Grant& message) const { expect_contained(message.task); }
  void operator()(const wire::Checkpointed& message) const { expect_contained(message.file.name); }
  void operator()(const wire::ShardReady& message) const { expect_contained(message.file.name); }
  void operator()(const wire::Done& message) const {
    for (const auto& file : message.files) expect_contained(file.name);
  }
  template <typename T>
  void operator()(const T&) const {}
};

void decode(std::string_view frame) {
  std::string again;
  try {
    const wire::Message message = wire::decode(frame);
    std::visit(Names{}, message);
    again = wire::encode(message);
  } catch (const storage::Error& error) {
    // kInternal: what was near the cap as text is over it once escaped.
    fuzz::expect(error.kind() == storage::ErrorKind::kCorrupt ||
                     (error.kind() == storage::ErrorKind::kInternal && frame.size() > 1000),
                 "a damaged message is kCorrupt");
    return;
  }
  fuzz::expect(wire::encode(wire::decode(again)) == again, "what was accepted reads back the same");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  decode(input);
  // The header is easy to break and hard to find again.
  static const std::string kHeader = wire::encode(wire::Idle{0}).substr(0, 8);
  if (!input.starts_with(kHeader)) decode(kHeader + std::string(input));
  return 0;
}
