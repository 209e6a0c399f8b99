// A run directory in memory with a journal whose terms can be written, read and damaged.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "storage/files/file.hpp"
#include "storage/journal/journal.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {

class JournalTest : public ::testing::Test {
 protected:
  [[nodiscard]] ReplayResult replay() const {
    return std::filesystem::exists(layout_.journal_directory()) ? replay_journal(layout_)
                                                                : ReplayResult{};
  }
  [[nodiscard]] Journal start() const { return Journal::start_term(layout_, replay()); }

  // A term of its own with records "<name>0", "<name>1", ..., each committed alone.
  void write_term(const std::string& name, int num_records) const {
    Journal journal = start();
    for (int i = 0; i < num_records; ++i) {
      journal.append(named(name + std::to_string(i)));
      journal.commit();
    }
  }
  static nlohmann::json named(const std::string& name) {
    return {{"type", "test"}, {"name", name}};
  }

  static std::vector<std::string> names(const ReplayResult& replayed) {
    std::vector<std::string> result;
    for (const JournalRecord& record : replayed.records) {
      if (record.event.at("type") == "test")
        result.push_back(record.event.at("name").get<std::string>());
    }
    return result;
  }
  [[nodiscard]] std::string text(std::uint64_t term) const {
    return read_text(layout_.journal_segment(term));
  }
  void overwrite(std::uint64_t term, const std::string& text) const {
    File file = File::create(layout_.journal_segment(term));
    file.write_all(std::as_bytes(std::span(text)));
    file.close();
  }
  void append_text(std::uint64_t term, const std::string& text) const {
    File file = File::open_append(layout_.journal_segment(term));
    file.write_all(std::as_bytes(std::span(text)));
    file.close();
  }

  tests::MemoryDirectory directory_;
  RunLayout layout_{directory_ / "run"};
};

}  // namespace hedgerow::storage
