// The studies that are built, one file each, for the table in all.cpp.
#pragma once

#include "worker/laboratory/study.hpp"

namespace hedgerow::worker::laboratory {

[[nodiscard]] nlohmann::json published_recall();
[[nodiscard]] StudyResult run_recall(const StudyOptions& options);
[[nodiscard]] nlohmann::json published_denominators();
[[nodiscard]] StudyResult run_denominators(const StudyOptions& options);
[[nodiscard]] nlohmann::json published_orders();
[[nodiscard]] StudyResult run_orders(const StudyOptions& options);
[[nodiscard]] nlohmann::json published_efficient();
[[nodiscard]] StudyResult run_efficient(const StudyOptions& options);
[[nodiscard]] nlohmann::json published_encoder();
[[nodiscard]] StudyResult run_encoder(const StudyOptions& options);
[[nodiscard]] nlohmann::json published_decoder();
[[nodiscard]] StudyResult run_decoder(const StudyOptions& options);
[[nodiscard]] nlohmann::json published_from_scratch();
[[nodiscard]] StudyResult run_from_scratch(const StudyOptions& options);
[[nodiscard]] nlohmann::json published_performer();
[[nodiscard]] StudyResult run_performer(const StudyOptions& options);

}  // namespace hedgerow::worker::laboratory
