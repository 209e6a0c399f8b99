// Rot at rest, of every kind of file that a run commits (label faults): bits flip, files are cut,
// pages are zeroed, sound chunks lie in the wrong place. Production readers and `check` read each
// damaged file. Nothing may be silent, nothing may crash (the target is compiled with ASan and
// UBSan); what is called harmless is proved so: the reader gave exactly the same data. One JSON
// line a kind of file says what was done and what came of it.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "storage/base/error.hpp"
#include "storage/check.hpp"
#include "storage/files/file.hpp"
#include "storage/journal/journal.hpp"
#include "storage/shards/shard_header.hpp"
#include "storage/shards/tokens_file.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/faults/rot.hpp"
#include "tests/support/shard_fixture.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/writer_of.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using tests::kRotSeed;
using tests::Rot;
using tests::Seen;

std::string digest(const std::string& bytes) {
  return hash128(std::as_bytes(std::span(bytes))).hex();
}

class Damage : public ::testing::Test {
 protected:
  // What `check` says of one committed file.
  Seen checked(FileKind kind, const FileRecord& record) const {
    const CheckResult result = check_run(layout_, {{kind, record}}, 1);
    return {.data = result.damages.empty() ? record.root_hash.hex() : "",
            .complained = !result.damages.empty()};
  }
  // Two readers that must agree that something is wrong.
  static Seen both(const Seen& a, const tests::RotReader& b) {
    Seen other;
    try {
      other = b();
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), ErrorKind::kInternal) << error.what();
      other.complained = true;
    }
    EXPECT_EQ(a.complained, other.complained) << "check and the reader differ";
    return {.data = a.data + other.data, .complained = a.complained || other.complained};
  }
  static std::string tensors_of(const SafetensorsFile& file) {
    std::string all;
    for (const auto& [name, view] : file.tensors()) {
      all += name + json(view.shape).dump() + std::string(to_string(view.dtype));
      all.append(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
    }
    return digest(all + json(file.metadata()).dump());
  }
  // Numbers that a test can make again; `salt` tells one file's from another's.
  std::map<std::string, OwnedTensor> tensors(std::uint64_t salt) const {
    std::mt19937_64 random(kRotSeed + salt);
    std::map<std::string, OwnedTensor> made;
    for (const char* name : {"model.layers.3.self_attn.feature_map_q.mlp.layer",
                             "model.layers.3.self_attn.feature_map_k.mlp.layer",
                             "model.layers.3.self_attn.window_factors"}) {
      OwnedTensor tensor{DType::kF32, {3, 32, 16}, std::vector<std::byte>(3 * 32 * 16 * 4)};
      for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
      made.emplace(name, std::move(tensor));
    }
    return made;
  }
  FileRecord write_artifact(const std::string& name, std::uint64_t salt) {
    std::map<std::string, TensorView> views;
    const auto owned = tensors(salt);
    for (const auto& [key, tensor] : owned)
      views.emplace(key, TensorView{tensor.dtype, tensor.shape, tensor.bytes});
    const fs::path path = layout_.resolve(name);
    fs::create_directories(path.parent_path());
    write_safetensors(path, views, {{"format", "pt"}});
    return {name, fs::file_size(path), hash_file(path)};
  }

  tests::MemoryDirectory directory_;
  RunLayout layout_{directory_.path()};
};

TEST_F(Damage, OfAShardIsNeverReadSilently) {
  const std::string name = "hidden/b0003/s00012.t41.h5";
  const fs::path path = layout_.resolve(name);
  fs::create_directories(path.parent_path());
  const ShardInfo info = tests::shard_info(16, 16, 48);
  const FileRecord record = tests::write_shard(path, info, name);
  const std::string sound = tests::bytes_of(path);
  const ShardHeader header =
      decode_shard_header(std::as_bytes(std::span(sound)), sound.size(), "shard");
  ShardInfo other = info;
  other.shard = 13;
  other.first_sequence = 16;
  tests::write_shard(directory_ / "other.h5", other, name);
  Rot rot("shard", path, [&] {
    return both(checked(FileKind::kHiddenShard, record), [&]() -> Seen {
      const ShardReader reader(path, record);
      std::string data;
      std::vector<std::byte> bytes(info.bytes_per_sequence());
      for (std::int64_t i = 0; i < info.num_sequences; ++i) {
        reader.read(i, bytes);
        data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      return {digest(data), false};
    });
  });
  rot.flips(2200);
  rot.flips(1000, 0, header.data_offset);
  rot.cuts(200);
  rot.pages();
  rot.swaps(info.bytes_per_sequence(), header.data_offset, header.data_end(), 120);
  rot.swap_pages();
  rot.replaced(directory_ / "other.h5");
}

TEST_F(Damage, OfACheckpointIsNeverReadSilently) {
  fs::create_directories(layout_.resolve(RunLayout::attempt_directory(41)));
  const auto write = [&](std::uint64_t step) {
    const json state = {{"kind", "transfer/1"}, {"step", step}, {"history", json::array({1.5, 2})}};
    return write_checkpoint(layout_, 41, static_cast<std::int64_t>(step), {tensors(step), state});
  };
  const FileRecord record = write(8);
  const fs::path path = layout_.resolve(record.name);
  const fs::path other = layout_.resolve(write(6).name);
  Rot rot("checkpoint", path, [&] {
    return both(checked(FileKind::kWhole, record), [&]() -> Seen {
      const Checkpoint read = read_checkpoint(path, record);
      std::string all = read.state.dump();
      for (const auto& [key, tensor] : read.tensors) {
        all += key + json(tensor.shape).dump();
        all.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      }
      return {digest(all), false};
    });
  });
  rot.flips(1500);
  rot.flips(500, 0, 1024);  // the header
  rot.cuts(200);
  rot.pages();
  rot.swap_pages();
  rot.replaced(other);
}

TEST_F(Damage, OfFeatureMapsStudentAndAdapterIsNeverReadSilently) {
  const std::map<std::string, std::string> names = {
      {"feature maps", "blocks/b0003/artifact.t41.safetensors"},
      {"student", "student/t50/feature_maps.safetensors"},
      {"adapter", "adapter/t51/adapter_model.safetensors"}};
  for (const auto& [kind, name] : names) {
    const FileRecord record = write_artifact(name, kind.size());
    write_artifact("other", 99);
    const fs::path path = layout_.resolve(name);
    Rot rot(kind, path, [&] {
      return both(checked(FileKind::kWhole, record), [&]() -> Seen {
        verify_file(path, record);  // as assembler, evaluation, finetune, export and generate do
        return {tensors_of(SafetensorsFile(path)), false};
      });
    });
    rot.flips(800);
    rot.flips(300, 0, 512);  // the header
    rot.cuts(100);
    rot.pages();
    rot.swap_pages();
    rot.replaced(directory_ / "other");
  }
}

TEST_F(Damage, OfTokensIsNeverReadSilently) {
  TokenSequences tokens{.num_sequences = 24,
                        .num_train = 20,
                        .seq_len = 64,
                        .vocab_size = 1000,
                        .tokenizer_hash = "0123456789abcdef0123456789abcdef",
                        .sources = "[]",
                        .content_hash = {},
                        .input_ids = {},
                        .loss_mask = std::vector<std::uint8_t>(24 * 64, 1),
                        .document_starts = std::vector<std::uint8_t>(24 * 64, 0)};
  for (int i = 0; i < 24 * 64; ++i) tokens.input_ids.push_back(i * 7919 % 1000);
  const std::string name = "tokens/transfer.h5";
  const fs::path path = layout_.resolve(name);
  fs::create_directories(path.parent_path());
  write_tokens(path, tokens);
  const FileRecord record{name, fs::file_size(path), hash_file(path)};
  Rot rot("tokens", path, [&] {
    return both(checked(FileKind::kWhole, record), [&]() -> Seen {
      const TokenSequences read = load_tokens(path, 1000, record);
      return {digest(json({read.input_ids, read.loss_mask, read.document_starts}).dump()), false};
    });
  });
  rot.flips(600);
  rot.cuts(100);
  rot.pages();
  rot.swap_pages();
}

// A journal's data are its events in order, here numbers. A snapshot's state holds those before it.
class JournalDamage : public Damage {
 protected:
  static constexpr int kTerms = 3, kRecordsPerTerm = 60;

  JournalDamage() {
    int next = 0;
    json state = json::array();
    for (int term = 1; term <= kTerms; ++term) {
      Journal journal = Journal::start_term(layout_, replay_journal_or_nothing());
      for (int i = 0; i < kRecordsPerTerm; ++i) {
        journal.append({{"type", "noted"}, {"text", "note"}, {"number", next}});
        state.push_back(next++);
        if (i % 4 == 0) journal.commit();
        if (with_snapshots_ && i == kRecordsPerTerm / 2)
          journal.write_snapshot(tests::writer_of(state));
      }
      journal.commit();
    }
  }
  virtual ~JournalDamage() = default;

  ReplayResult replay_journal_or_nothing() const {
    return fs::exists(layout_.journal_directory()) ? replay_journal(layout_) : ReplayResult{};
  }
  static Seen folded(const ReplayResult& result) {
    json state = result.snapshot.value_or(json::array());
    for (const JournalRecord& record : result.records) {
      if (record.event.contains("number")) state.push_back(record.event.at("number"));
    }
    return {digest(state.dump()), !result.damage.empty()};
  }
  fs::path segment(int term) const {
    return layout_.journal_segment(static_cast<std::uint64_t>(term));
  }

  bool with_snapshots_ = true;
};

TEST_F(JournalDamage, OfSegmentsIsReportedAndReplayNeverFails) {
  for (int term = 1; term <= kTerms; ++term) {
    // The history alone reads every segment; a state that a snapshot holds needs no earlier ones.
    Rot rot("journal segment " + std::to_string(term), segment(term), [this] {
      return folded(replay_history(layout_));
    });
    const std::string sound = tests::bytes_of(segment(term));
    rot.flips(700);
    // The newest segment is not sealed yet. Cut behind a whole line it is the journal of an earlier
    // moment: what was committed since is done again, under new tokens.
    rot.cuts(200, [&, term](std::size_t length) {
      return term == kTerms && (length == 0 || sound[length - 1] == '\n');
    });
    rot.pages();
    rot.swap_pages();
    rot.replaced(segment(term % kTerms + 1));
  }
}

TEST_F(JournalDamage, OfSnapshotsNeverChangesTheState) {
  for (int term = 1; term <= kTerms; ++term) {
    const fs::path path = layout_.snapshot(static_cast<std::uint64_t>(term));
    ASSERT_TRUE(fs::exists(path));
    const Seen sound = folded(replay_journal(layout_));
    Rot rot("journal snapshot " + std::to_string(term), path, [&] {
      const Seen seen = folded(replay_journal(layout_));
      // The records say it all: a snapshot that is not used costs time.
      EXPECT_EQ(seen.data, sound.data);
      return seen;
    });
    rot.flips(150);
    rot.cuts(60);
    rot.pages();
    rot.replaced(layout_.snapshot(static_cast<std::uint64_t>(term % kTerms + 1)));
    // Swapped with the segment that it belongs to.
    rot.replaced(segment(term));
  }
}

}  // namespace
}  // namespace hedgerow::storage
