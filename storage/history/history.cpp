#include "storage/history/history.hpp"

#include <algorithm>
#include <limits>

namespace hedgerow::storage {

void HistorySeries::append(HistoryRow row) {
  while (!rows.empty() && rows.back().step >= row.step) rows.pop_back();
  rows.push_back(std::move(row));
  if (rows.size() <= 2 * kMaxRows) return;
  // An odd number of them: the first and the last stay.
  for (std::size_t i = 0; 2 * i < rows.size(); ++i) std::swap(rows[i], rows[2 * i]);
  rows.resize(kMaxRows + 1);
  stride *= 2;
  num_offered = 1;  // the last one
}

void HistorySeries::change_columns(std::vector<std::string> changed) {
  if (changed == columns) return;
  std::vector<std::size_t> places;  // before the change
  bool is_any_left = false;
  for (const std::string& column : changed) {
    const auto found = std::find(columns.begin(), columns.end(), column);
    places.push_back(static_cast<std::size_t>(found - columns.begin()));
    is_any_left |= found != columns.end();
  }
  if (!is_any_left) *this = {};
  for (HistoryRow& row : rows) {
    std::vector<float> values;
    for (const std::size_t place : places)
      values.push_back(place < row.values.size() ? row.values[place]
                                                 : std::numeric_limits<float>::quiet_NaN());
    row.values = std::move(values);
  }
  columns = std::move(changed);
}

void to_json(nlohmann::json& json, const HistoryAttempt& attempt) {
  json = {{"token", attempt.token},
          {"task", attempt.task},
          {"worker", attempt.worker},
          {"host", attempt.host},
          {"started", attempt.started},
          {"ended", attempt.ended},
          {"outcome", attempt.outcome},
          {"reason", attempt.reason},
          {"steps", attempt.steps},
          {"tokens", attempt.tokens},
          {"seconds", attempt.seconds},
          {"seconds_waited_on_data", attempt.seconds_waited_on_data},
          {"host_bytes", attempt.host_bytes},
          {"device_bytes", attempt.device_bytes}};
}

void from_json(const nlohmann::json& json, HistoryAttempt& attempt) {
  json.at("token").get_to(attempt.token);
  json.at("task").get_to(attempt.task);
  json.at("worker").get_to(attempt.worker);
  json.at("host").get_to(attempt.host);
  json.at("started").get_to(attempt.started);
  json.at("ended").get_to(attempt.ended);
  json.at("outcome").get_to(attempt.outcome);
  json.at("reason").get_to(attempt.reason);
  json.at("steps").get_to(attempt.steps);
  json.at("tokens").get_to(attempt.tokens);
  json.at("seconds").get_to(attempt.seconds);
  json.at("seconds_waited_on_data").get_to(attempt.seconds_waited_on_data);
  json.at("host_bytes").get_to(attempt.host_bytes);
  json.at("device_bytes").get_to(attempt.device_bytes);
}

void to_json(nlohmann::json& json, const HistoryEvent& event) {
  json = {
      {"time", event.time}, {"subject", event.subject}, {"type", event.type}, {"text", event.text}};
}

void from_json(const nlohmann::json& json, HistoryEvent& event) {
  json.at("time").get_to(event.time);
  json.at("subject").get_to(event.subject);
  json.at("type").get_to(event.type);
  json.at("text").get_to(event.text);
}

void to_json(nlohmann::json& json, const HistoryAttention& attention) {
  json = {{"layer", attention.layer},
          {"head", attention.head},
          {"step", attention.step},
          {"rows", attention.rows},
          {"columns", attention.columns},
          {"softmax", attention.softmax},
          {"student", attention.student}};
}

void from_json(const nlohmann::json& json, HistoryAttention& attention) {
  json.at("layer").get_to(attention.layer);
  json.at("head").get_to(attention.head);
  json.at("step").get_to(attention.step);
  json.at("rows").get_to(attention.rows);
  json.at("columns").get_to(attention.columns);
  json.at("softmax").get_to(attention.softmax);
  json.at("student").get_to(attention.student);
}

}  // namespace hedgerow::storage
