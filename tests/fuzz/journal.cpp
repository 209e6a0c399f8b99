// The journal's segments as bytes, through replay and through the fold to a state. An input that
// begins with {"seq" is a segment as it lies on disk. Any other is a list of events, one a line in
// JSON, to which the harness adds what a fuzzer cannot guess (numbers and hash chains); a line ---
// begins the next term's segment.
#include "storage/journal/journal.hpp"

#include <fstream>

#include "coordinator/state/fold.hpp"
#include "storage/base/error.hpp"
#include "storage/journal/journal_line.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/temporary_directory.hpp"

namespace {

using namespace hedgerow;

constexpr std::string_view kNextTerm = "---";

std::vector<std::string> segments_of(std::string_view input) {
  if (input.starts_with("{\"seq\"")) return {std::string(input)};
  std::vector<std::string> segments(1);
  std::uint64_t seq = 0, chain = storage::first_seed(1);
  while (!input.empty()) {
    const std::size_t newline = std::min(input.find('\n'), input.size());
    const std::string_view line = input.substr(0, newline);
    input.remove_prefix(std::min(newline + 1, input.size()));
    if (line == kNextTerm) {
      segments.emplace_back();
      chain = storage::first_seed(segments.size());
      continue;
    }
    const std::string body = "{\"seq\":" + std::to_string(++seq) +
                             ",\"at\":\"2026-11-21T12:00:00.000Z\",\"event\":" + std::string(line);
    chain = storage::chain_of(body, chain);
    segments.back() += body + ",\"chain\":\"" + storage::to_hex64(chain) + "\"}\n";
  }
  return segments;
}

// A run directory in memory that holds nothing but the segments.
class Run {
 public:
  Run() { std::filesystem::create_directories(layout.journal_directory()); }
  void write(const std::vector<std::string>& segments) {
    for (std::size_t i = 0; i < std::max(segments.size(), num_segments_); ++i) {
      const auto path = layout.journal_segment(i + 1);
      if (i < segments.size()) {
        std::ofstream(path, std::ios::binary | std::ios::trunc) << segments[i];
      } else {
        std::filesystem::remove(path);
      }
    }
    num_segments_ = segments.size();
  }

 private:
  tests::MemoryDirectory directory_;
  std::size_t num_segments_ = 0;

 public:
  storage::RunLayout layout{directory_.path()};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Run run;
  run.write(segments_of(fuzz::text_of(data, size)));
  try {
    const storage::ReplayResult replayed = storage::replay_journal(run.layout);
    fuzz::expect(replayed.records.size() <= size, "no record comes from nothing");
    const coordinator::State state = coordinator::fold(replayed).state;
    const nlohmann::json json = coordinator::state_to_json(state);
    fuzz::expect(coordinator::state_to_json(coordinator::state_from_json(json)) == json,
                 "a snapshot of the state reads back the same");
  } catch (const storage::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    fuzz::expect(false, "replay never refuses to start");
  }
  return 0;
}
