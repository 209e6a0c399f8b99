// The fields of [workers] for recipe_fields.hpp, which tells what a visitor is.
#pragma once

#include "storage/recipe/recipe_rules.hpp"

namespace hedgerow::storage {

template <typename Workers, typename Visitor>
void visit_workers(Workers& workers, Visitor& visitor) {
  visitor.field(
      "local",
      workers.local,
      {.comment = "started on this machine", .min = 0, .max = 4096, .safe_to_change = true});
  visitor.field("threads",
                workers.threads,
                {.comment = "each; 0: cores / local, elsewhere all; equal bytes need equal threads",
                 .min = 0,
                 .max = 4096,
                 .safe_to_change = true});
  visitor.field("orphan_timeout_s",
                workers.orphan_timeout_s,
                {.comment = "without a coordinator, then checkpoint and exit",
                 .min = 1,
                 .max = 1e6,
                 .safe_to_change = true});
  visitor.field("lease_s",
                workers.lease_s,
                {.comment = "silence after which a task goes to another worker",
                 .min = 1,
                 .max = 1e5,
                 .safe_to_change = true});
  visitor.field("hang_timeout_s",
                workers.hang_timeout_s,
                {.comment = "alive without progress, then killed; or ten steps' time, if longer",
                 .min = 1,
                 .max = 1e6,
                 .safe_to_change = true});
  visitor.field(
      "file_patience_s",
      workers.file_patience_s,
      {.comment = "for renames that a network file system shows late; then a file is lost",
       .min = 0,
       .max = 1e5,
       .safe_to_change = true});
  visitor.field("bind",
                workers.bind,
                {.comment = "an address or interface, or * for all; all but loopback need keys",
                 .safe_to_change = true});
  visitor.field("advertise",
                workers.advertise,
                {.comment = "how workers reach it; empty: what bind says, or this host's name",
                 .safe_to_change = true});
  visitor.field("port",
                workers.port,
                {.comment = "where the coordinator listens; 0: any free one",
                 .min = 0,
                 .max = 65535,
                 .safe_to_change = true});
}

}  // namespace hedgerow::storage
