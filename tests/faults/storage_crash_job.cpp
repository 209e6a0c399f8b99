#include "tests/faults/storage_crash_job.hpp"

#include <span>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/base/philox.hpp"
#include "storage/files/file.hpp"
#include "storage/files/hash.hpp"
#include "tests/support/writer_of.hpp"

namespace hedgerow::tests {
namespace {

namespace fs = std::filesystem;
using storage::RunLayout;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string publish_file(const CrashJob& job,
                         const RunLayout& layout,
                         int index,
                         std::uint64_t term) {
  const fs::path attempt = layout.resolve(RunLayout::attempt_directory(term));
  const std::string name = RunLayout::block_artifact(index, term);
  fs::create_directories(attempt);
  fs::create_directories(layout.resolve(name).parent_path());
  storage::File file = storage::File::create(attempt / "artifact");
  const std::string content = content_of(job, index);
  // Two writes, so that a crash between them leaves half a file.
  file.write_all(bytes_of(content).first(content.size() / 2));
  file.write_all(bytes_of(content).subspan(content.size() / 2));
  file.sync();
  file.close();
  storage::publish(attempt / "artifact", layout.resolve(name));
  return name;
}

void judge_file(const CrashJob& job,
                const RunLayout& layout,
                int index,
                const std::string& name,
                std::vector<std::string>& broken) {
  try {
    if (storage::read_text(layout.resolve(name)) != content_of(job, index))
      broken.push_back(name + " holds other bytes");
  } catch (const storage::Error& error) {
    broken.push_back(name + " is committed, but: " + error.what());
  }
}

}  // namespace

std::string content_of(const CrashJob& job, int index) {
  storage::PhiloxStream random(7, static_cast<std::uint32_t>(index), 0, 0);
  std::string content(job.file_bytes, '\0');
  for (char& c : content) c = static_cast<char>('a' + static_cast<int>(random.uniform() * 26));
  return content;
}

CrashJobState read_crash_job(const RunLayout& layout) {
  CrashJobState state;
  if (!fs::exists(layout.journal_directory())) return state;
  state.replayed = storage::replay_journal(layout);
  if (state.replayed.snapshot) state.replayed.snapshot->at("committed").get_to(state.committed);
  for (const storage::JournalRecord& record : std::exchange(state.replayed.records, {})) {
    if (record.event.at("type") == "committed")
      state.committed.push_back(record.event.at("name").get<std::string>());
  }
  return state;
}

void run_crash_job(const CrashJob& job,
                   const RunLayout& layout,
                   const std::function<void(int)>& acknowledge) {
  fs::create_directories(layout.root());
  CrashJobState state = read_crash_job(layout);
  storage::Journal journal = storage::Journal::start_term(layout, state.replayed);
  for (int i = static_cast<int>(state.committed.size()); i < job.num_files; ++i) {
    state.committed.push_back(publish_file(job, layout, i, journal.term()));
    journal.append({{"type", "committed"}, {"name", state.committed.back()}});
    journal.commit();
    acknowledge(i);
    if (i + 1 == job.snapshot_after)
      journal.write_snapshot(tests::writer_of({{"committed", state.committed}}));
  }
}

std::vector<std::string> judge(const CrashJob& job, const RunLayout& layout, int num_acknowledged) {
  std::vector<std::string> broken;
  const CrashJobState state = read_crash_job(layout);
  for (std::size_t i = 0; i < state.committed.size(); ++i) {
    judge_file(job, layout, static_cast<int>(i), state.committed[i], broken);
  }
  if (static_cast<int>(state.committed.size()) < num_acknowledged) {
    broken.push_back(std::to_string(num_acknowledged) + " files were acknowledged, but only " +
                     std::to_string(state.committed.size()) + " are committed");
  }
  for (const storage::JournalDamage& damage : state.replayed.damage) {
    if (!damage.is_torn_tail)
      broken.push_back("term " + std::to_string(damage.term) + ": " + damage.reason);
  }
  return broken;
}

}  // namespace hedgerow::tests
