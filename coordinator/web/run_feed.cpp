#include "coordinator/web/run_feed.hpp"

#include "coordinator/status/status_build.hpp"
#include "coordinator/web/snapshot.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxBytes = 8U << 20;
// A coordinator that is gone changes no file.
constexpr int kPollsWithoutStatus = 10;

std::string text_of(const RunStatus& status) {
  return nlohmann::json(status).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

RunFeed::RunFeed(storage::RunLayout layout, std::uint64_t first_id)
    : layout_(std::move(layout)), last_id_(first_id), history_(layout_), forgotten_id_(first_id) {
  history_.read_all();
  status_ = read_status(layout_);
  status_text_ = text_of(status_);
  provenance_ = provenance_of(layout_);
}

RunFeed::Message RunFeed::message(const char* event, const std::string& data) {
  ++last_id_;
  return {last_id_,
          std::make_shared<const std::string>("id: " + std::to_string(last_id_) +
                                              "\nevent: " + event + "\ndata: " + data + "\n\n")};
}

std::vector<RunFeed::Message> RunFeed::poll() {
  std::vector<Message> messages;
  if (const storage::HistoryNews news = history_.poll(); !news.empty()) {
    messages_.push_back(message("history", news_json(history_.history(), news)));
    num_bytes_ += messages_.back().text->size();
    messages.push_back(messages_.back());
    while (num_bytes_ > kMaxBytes) {
      forgotten_id_ = messages_.front().id;
      num_bytes_ -= messages_.front().text->size();
      messages_.pop_front();
    }
  }
  std::error_code none;
  const auto time = fs::last_write_time(status_file(layout_), none);
  if (!none && time == status_time_ && ++polls_since_status_ < kPollsWithoutStatus) return messages;
  status_time_ = time;
  polls_since_status_ = 0;
  status_ = read_status(layout_);
  std::string text = text_of(status_);
  if (text == status_text_) return messages;
  status_text_ = std::move(text);
  latest_status_ = message("status", status_text_);
  messages.push_back(latest_status_);
  return messages;
}

std::string RunFeed::snapshot() const {
  std::string recipe;
  try {
    recipe = storage::read_text(layout_.recipe());
  } catch (const storage::Error&) {
    // A run whose recipe is gone has a page all the same.
  }
  return snapshot_json({.status = status_,
                        .history = history_.history(),
                        .recipe = recipe,
                        .provenance = provenance_,
                        .is_live = !status_.endpoint.empty() && status_.state == "running",
                        .id = last_id_});
}

std::vector<RunFeed::Message> RunFeed::since(std::uint64_t id) const {
  if (id < forgotten_id_ || id > last_id_)
    return {{last_id_,
             std::make_shared<const std::string>("id: " + std::to_string(last_id_) +
                                                 "\nevent: reset\ndata: {}\n\n")}};
  std::vector<Message> missed;
  for (const Message& message : messages_)
    if (message.id > id) missed.push_back(message);
  if (latest_status_.id > id) missed.push_back(latest_status_);
  return missed;
}

}  // namespace hedgerow::coordinator
